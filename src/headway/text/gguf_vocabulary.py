"""A Vocabulary from tokenizer.ggml.* of a GGUF file, by its tokenizer's model; ids are llama.cpp's."""

from collections.abc import Callable, Mapping

from headway.errors import UnsupportedModel
from headway.text.gguf_byte_pairs import read_byte_pairs, read_spaced_pairs
from headway.text.gguf_sentencepiece import read_scored_pairs, read_unigram
from headway.text.gguf_tokens import GgufTokens, check_tokens
from headway.text.gguf_word_pieces import read_word_pieces
from headway.text.source import GgufVocabulary
from headway.text.vocabulary import Vocabulary

_MODELS: Mapping[str, Callable[[GgufTokens], Vocabulary]] = {
    "gpt2": read_byte_pairs,
    "llama": read_scored_pairs,
    "t5": read_unigram,
    "bert": read_word_pieces,
    "gemma4": read_spaced_pairs,
}


def read_gguf_vocabulary(found: GgufVocabulary, end_token_ids: frozenset[int]) -> Vocabulary:
    """The vocabulary of a GGUF file; `end_token_ids` are control tokens even where the file calls them user defined.

    Raises UnsupportedModel for another tokenizer model or pre-tokenizer, CorruptCheckpoint for one that contradicts
    itself.
    """
    read = _MODELS.get(found.model)
    if read is None:
        raise UnsupportedModel(
            f"the GGUF file's tokenizer model is {found.model[:50]!r}; Headway reads {', '.join(_MODELS)}. "
            "Serve the model's Hugging Face folder, with its tokenizer.json, instead"
        )
    return read(check_tokens(found, end_token_ids))
