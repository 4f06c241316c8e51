"""WordPiece vocabularies (model bert): a token that begins a word has ▁ in front, one that continues it nothing."""

from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from headway.errors import CorruptCheckpoint
from headway.text.gguf_tokens import GgufTokens
from headway.text.piece_merger import SPACE
from headway.text.vocabulary import PairFrame, Vocabulary

_MAX_WORD = 100
"""Characters of a word; a longer one is unknown, as for the models' own tokenizers."""
_CONTINUES = "##"


def read_word_pieces(tokens: GgufTokens) -> Vocabulary:
    """Words in lower case without accents where the file says so; [CLS] before a text and [SEP] behind it."""
    found = tokens.found
    if found.unknown_token_id is None:
        raise CorruptCheckpoint("a WordPiece vocabulary has no unknown_token_id")
    bos_token_id, separator_token_id = found.bos_token_id, found.separator_token_id
    prefix = () if bos_token_id is None else (bos_token_id,)
    suffix = () if separator_token_id is None else (separator_token_id,)
    return tokens.vocabulary(
        _make_engine(tokens, found.unknown_token_id),
        can_cut=True,
        prefix=prefix,
        suffix=suffix,
        pair=PairFrame(prefix, suffix, suffix, second_type=1) if prefix and suffix else None,
        strips_leading_space=True,
    )


def _make_engine(tokens: GgufTokens, unknown_id: int) -> Engine:
    """The library's tokenizer. The unknown token is in it under a name that is no word."""
    found = tokens.found
    unknown = found.tokens[unknown_id]
    pieces = {_as_library(text): token_id for text, token_id in tokens.plain.items()} | {unknown: unknown_id}
    engine = Engine(WordPiece(pieces, unk_token=unknown, max_input_chars_per_word=_MAX_WORD))
    engine.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=found.lowercase if found.strip_accents is None else found.strip_accents,
        lowercase=found.lowercase,
    )
    engine.pre_tokenizer = BertPreTokenizer()
    engine.add_tokens([AddedToken(text, normalized=False) for text in tokens.user_defined])
    return engine


def _as_library(text: str) -> str:
    return text[1:] if text.startswith(SPACE) else f"{_CONTINUES}{text}"
