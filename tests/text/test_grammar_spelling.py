"""What a model's vocabulary cannot write is refused as the grammar is compiled, and is no panic on the way."""

import pytest

from headway.core.structured import StructuredOutputs
from headway.engine.constraint_tokens import ConstraintTokens
from headway.errors import InvalidRequest
from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.grammar_compiler import compile_grammar
from headway.text.grammar_spelling import check_spelling, unusual_characters
from headway.text.source import GgufVocabulary, TextSource
from headway.text.structured import structured_grammar
from headway.text.tokenizer import make_tokenizer

RARE = "\U00070026"
"""Begins with the byte F1, for which SmolLM2's vocabulary has no token."""


@pytest.fixture(scope="module")
def tokens() -> ConstraintTokens:
    """Bytes, but F1."""
    spelt = ["<end>", *(character for byte, character in CHARACTER_OF_BYTE.items() if byte != 0xF1)]
    vocabulary = GgufVocabulary(
        model="gpt2",
        pre="gpt-2",
        tokens=spelt,
        token_types=[3, *[1] * 255],
        merges=[],
        eos_token_id=0,
        end_token_ids=frozenset({0}),
    )
    return ConstraintTokens(make_tokenizer(TextSource(vocabulary, len(spelt), frozenset({0}))))


def grammar_of(kind: str, value: object) -> str:
    return structured_grammar(StructuredOutputs(kind=kind, value=value)).text()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("json_schema", {"enum": ["é", f"a{RARE}"]}),
        ("json_schema", {"anyOf": [{"const": [{"k": RARE}]}, {"type": "null"}]}),
        ("json_schema", {"type": "object", "properties": {RARE: {"type": "null"}}}),
        ("json_schema", {"type": "array", "items": {"type": "object", "required": [RARE]}}),
        ("json_schema", {"type": "string", "pattern": f"a[b-d]{RARE}+"}),
        ("json_schema", {"type": "object", "patternProperties": {f"^{RARE}": {"type": "null"}}}),
        ("json_schema", {"type": "object", "patternProperties": {"^a": {"const": RARE}}}),
        ("choice", ["yes", RARE]),
        ("regex", f"a|{RARE}"),
        ("grammar", f'start: "a" | "{RARE}"'),
    ],
)
def test_a_character_without_tokens_is_refused_by_name(tokens: ConstraintTokens, kind: str, value: object) -> None:
    with pytest.raises(
        InvalidRequest, match=r"^here has the character '\\U00070026' \(U\+70026\), which this model has"
    ):
        check_spelling(grammar_of(kind, value), tokens.can_spell, "here")


@pytest.mark.parametrize(
    ("kind", "value", "characters"),
    [
        ("json_schema", {"description": RARE, "title": RARE, "type": "string", "default": RARE}, []),
        ("json_schema", {"enum": ["é☀", "a"], "description": "ü"}, ["é", "☀"]),
        ("json_object", None, []),
        ("choice", ["ja", "né"], ["é"]),
        ("json_schema", {"type": "string", "pattern": f"^[^{RARE}é]?[]{RARE}a]b$"}, []),
        ("json_schema", {"type": "string", "pattern": f"é[\\]{RARE}x]\\[ü"}, ["é", "ü"]),
    ],
)
def test_what_no_answer_has_counts_for_nothing(
    tokens: ConstraintTokens, kind: str, value: object, characters: list[str]
) -> None:
    text = grammar_of(kind, value)
    assert unusual_characters(text) == characters
    check_spelling(text, tokens.can_spell, "here")
    compile_grammar(tokens.llguidance, text)


def test_what_is_written_as_an_escape_is_told_without_the_librarys_panic(tokens: ConstraintTokens) -> None:
    text = grammar_of("regex", r"\U00070026")
    assert unusual_characters(text) == []
    with pytest.raises(InvalidRequest) as caught:
        compile_grammar(tokens.llguidance, text, param="here")
    assert caught.value.message == (
        "here cannot be enforced: it leaves no choice but a text that this model has no tokens for"
    )
