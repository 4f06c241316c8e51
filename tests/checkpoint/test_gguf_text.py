from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.gguf_text import read_vocabulary_file
from headway.errors import CorruptCheckpoint
from oracles import demo_model, llama_cpp_sources

Write = Callable[..., Path]


def test_the_demo_models_text_is_smollm2s() -> None:
    text = open_checkpoint(demo_model()).text
    vocabulary = text.vocabulary
    assert (vocabulary.model, vocabulary.pre) == ("gpt2", "smollm")
    assert (len(vocabulary.tokens), len(vocabulary.token_types), len(vocabulary.merges)) == (49152, 49152, 48900)
    assert vocabulary.tokens[2] == "<|im_end|>"
    assert vocabulary.token_types[:3] == [3, 3, 3]
    assert (vocabulary.bos_token_id, vocabulary.unknown_token_id, vocabulary.padding_token_id) == (1, 0, 2)
    assert (vocabulary.add_bos_token, vocabulary.add_space_prefix, vocabulary.add_eos_token) == (False, False, None)
    assert vocabulary.end_token_ids == {2}
    assert text.end_token_ids == {0, 2}  # <|endoftext|> by its text, <|im_end|> by the metadata
    assert text.vocab_size == 49152
    assert text.chat_template is not None
    assert text.chat_template.startswith("{% for message in messages %}")


@pytest.mark.parametrize(
    ("name", "ends"),
    [  # from each model's own card and configuration
        ("llama-bpe", {"<|end_of_text|>", "<|eot_id|>"}),
        ("qwen2", {"<|endoftext|>", "<|im_end|>"}),
        ("phi-3", {"<|endoftext|>", "<|end|>", "</s>"}),
        ("llama-spm", {"</s>"}),
        ("gpt-2", {"<|endoftext|>"}),
    ],
)
def test_the_end_tokens_of_real_vocabularies_are_found(name: str, ends: set[str]) -> None:
    text = read_vocabulary_file(llama_cpp_sources() / "models" / f"ggml-vocab-{name}.gguf")
    found = {text.vocabulary.tokens[number] for number in text.end_token_ids}
    assert found == ends


@pytest.mark.parametrize(
    ("tokens", "types", "ends"),
    [
        (["<|im_end|>", "<eos>"], [3, 3], {0, 1}),
        (["<|im_end|>", "a"], [4, 1], {0}),  # some converters call it user defined
        (["<|im_end|>", "a"], [1, 1], set()),  # an ordinary word that only looks like one
        (["<|end|>", "<|return|>", "<|call|>"], [3, 3, 3], {1, 2}),  # ends a message, not the turn
        (["<|end|>", "<|flush|>", "<|calls|>"], [3, 3, 3], {1, 2}),
        (["</s>", "<|tool_response>"], [3, 3], {1}),
    ],
)
def test_end_tokens_are_known_by_their_text_as_in_llama_cpp(
    write_gguf: Write, tokens: list[str], types: list[int], ends: set[int]
) -> None:
    entries = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.eos_token_id": None,
    }
    assert read_vocabulary_file(write_gguf(entries=entries)).end_token_ids == ends


def test_end_tokens_are_the_union_of_what_the_file_names_and_what_is_known(write_gguf: Write) -> None:
    entries = {"tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.eom_token_id": 5}
    text = read_vocabulary_file(write_gguf(entries=entries))
    assert text.vocabulary.end_token_ids == {2, 4, 5}
    assert text.end_token_ids == {2, 3, 4, 5}


def test_sampling_defaults_are_said_in_the_words_of_generation_config(write_gguf: Write) -> None:
    entries = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.25,
        "general.sampling.penalty_repeat": 1.5,
    }
    assert read_vocabulary_file(write_gguf(entries=entries)).generation_defaults == {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.25,
        "repetition_penalty": 1.5,
    }


def test_a_token_id_of_minus_one_is_none(write_gguf: Write) -> None:
    entries = {"tokenizer.ggml.bos_token_id": -1, "tokenizer.ggml.padding_token_id": 2**32 - 1}
    vocabulary = read_vocabulary_file(write_gguf(entries=entries)).vocabulary
    assert (vocabulary.bos_token_id, vocabulary.padding_token_id) == (None, None)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"tokenizer.ggml.eos_token_id": 8}, "eos_token_id is 8, of 8 tokens"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "8 numbers"),
        ({"tokenizer.ggml.scores": [0.5]}, "8 numbers"),
        ({"tokenizer.ggml.tokens": "text"}, "not an array of strings"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "not an array of strings"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.add_bos_token": 1}, "not true or false"),
        ({"tokenizer.chat_template": 7}, "not a string"),
    ],
)
def test_vocabularies_that_contradict_themselves_are_corrupt(
    write_gguf: Write, entries: dict[str, Any], words: str
) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        read_vocabulary_file(write_gguf(entries=entries))
