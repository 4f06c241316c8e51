"""Dialects over a vocabulary of bytes, in which markers may be special tokens."""

from collections.abc import Callable

import pytest

from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.source import GgufVocabulary, TextSource
from headway.text.tokenizer import Tokenizer, make_tokenizer
from headway.text.tool_calls import Dialect, choose_dialect

FIRST_MARKER = 258


def make_byte_tokenizer(*markers: str) -> Tokenizer:
    """</s> is 0; the markers are control tokens from FIRST_MARKER on."""
    tokens = ["</s>", "<pad>", *CHARACTER_OF_BYTE.values(), *markers]
    vocabulary = GgufVocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=tokens,
        token_types=[3, 3, *[1] * 256, *[3] * len(markers)],
        merges=[],
        eos_token_id=0,
        end_token_ids=frozenset({0}),
    )
    return make_tokenizer(TextSource(vocabulary, len(tokens), frozenset({0})))


@pytest.fixture
def byte_tokenizer() -> Callable[..., Tokenizer]:
    return make_byte_tokenizer


@pytest.fixture
def make_dialect() -> Callable[..., Dialect]:
    """By name, for a model without markers among its tokens."""

    def make(name: str, template: str = "tools") -> Dialect:
        return choose_dialect(template, make_byte_tokenizer(), name)

    return make
