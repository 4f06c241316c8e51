"""Vocabularies to test with: llama.cpp's own, the demo model's, and small ones that are made on the spot."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headway.checkpoint.gguf_text import read_vocabulary_file
from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.source import GgufVocabulary, TextSource, TokenizerFiles
from headway.text.tokenizer import Tokenizer, make_tokenizer
from oracles import demo_model, llama_cpp_sources


@cache
def _llama_cpp_source(name: str) -> TextSource:
    return read_vocabulary_file(llama_cpp_sources() / "models" / f"ggml-vocab-{name}.gguf")


@pytest.fixture
def llama_cpp_source() -> Callable[[str], TextSource]:
    return _llama_cpp_source


_SEVERAL_TESTS = ("llama-spm", "phi-3", "baichuan", "bert-bge", "nomic-bert-moe", "gemma-4")


@cache
def _kept_tokenizer(name: str) -> Tokenizer:
    return make_tokenizer(_llama_cpp_source(name))


@pytest.fixture
def llama_cpp_tokenizer() -> Callable[[str], Tokenizer]:
    def make(name: str) -> Tokenizer:
        return _kept_tokenizer(name) if name in _SEVERAL_TESTS else make_tokenizer(_llama_cpp_source(name))

    return make


@pytest.fixture(scope="session")
def demo_source() -> TextSource:
    return read_vocabulary_file(demo_model())


@pytest.fixture(scope="session")
def demo(demo_source: TextSource) -> Tokenizer:
    return make_tokenizer(demo_source)


def small_vocabulary(*merged: str, **changes: Any) -> GgufVocabulary:
    """<s>, </s>, <|turn|> (control), <tool> (user defined), the 256 bytes from id 4, then `merged`: "a b" makes ab."""
    tokens = ["<s>", "</s>", "<|turn|>", "<tool>", *CHARACTER_OF_BYTE.values(), *(m.replace(" ", "") for m in merged)]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_types": [3, 3, 3, 4] + [1] * (len(tokens) - 4),
        "merges": list(merged),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "end_token_ids": frozenset({1}),
    }
    return GgufVocabulary(**(values | changes))


@pytest.fixture
def make_small() -> Callable[..., Tokenizer]:
    def make(*merged: str, **changes: Any) -> Tokenizer:
        vocabulary = small_vocabulary(*merged, **changes)
        return make_tokenizer(TextSource(vocabulary, len(vocabulary.tokens), vocabulary.end_token_ids))

    return make


@pytest.fixture
def json_source(tmp_path: Path) -> Callable[..., TextSource]:
    """A source from a tokenizer.json of this content."""

    def make(tree: dict[str, Any], **config: Any) -> TextSource:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(tree), encoding="utf-8")
        return TextSource(TokenizerFiles(path, config), 1000, frozenset())

    return make
