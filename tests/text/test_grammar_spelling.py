"""What a model's vocabulary cannot write is refused as the grammar is compiled, and is no panic on the way."""

import json
from typing import Any

import jsonschema
import pytest

from headway.core.structured import StructuredOutputs
from headway.engine.constraint_tokens import ConstraintTokens
from headway.errors import InvalidRequest
from headway.text.byte_alphabet import CHARACTER_OF_BYTE
from headway.text.grammar_compiler import compile_grammar
from headway.text.grammar_spelling import check_spelling, leave_out_unwritable, unusual_characters
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


CHOICES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"enum": ["é", f"a{RARE}", 1]}, ["é", 1], []),
    ({"anyOf": [{"const": [RARE]}, {"type": "null"}]}, [None], []),
    ({"oneOf": [{"enum": [RARE, "b"]}, {"type": "integer"}]}, ["b", 3], []),
    (
        {"type": "object", "properties": {RARE: {"type": "null"}, "a": {"type": "integer"}}},
        [{}, {"a": 1}, {"a": 1, "b": "c"}],
        [{"a": "x"}],
    ),
    ({"type": "object", "properties": {RARE: {}}, "additionalProperties": False}, [{}], [{"a": 1}]),
    ({"type": "array", "items": {"type": "object", "required": [RARE]}}, [[]], [[{}]]),
    ({"type": "array", "items": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": [RARE, "e"]}}}, [["e", "e"]], [["f"]]),
    ({"type": "object", "patternProperties": {"^a": {"enum": [RARE, 2]}}}, [{"ab": 2, "c": 0}], [{"a": 1}]),
]


@pytest.mark.parametrize(("schema", "taken", "refused"), CHOICES)
def test_where_another_choice_is_left_the_unwritable_one_is_left_out(
    tokens: ConstraintTokens, schema: Any, taken: list[Any], refused: list[Any]
) -> None:
    text = leave_out_unwritable(grammar_of("json_schema", schema), tokens.can_spell)
    check_spelling(text, tokens.can_spell, "here")
    matcher = compile_grammar(tokens.llguidance, text)
    for answers, is_right in ((taken, True), (refused, False)):
        for answer in answers:
            ids = tokens.encode_bytes(json.dumps(answer, ensure_ascii=False).encode())
            copy = matcher.deep_copy()
            is_taken = copy.validate_tokens(ids) == len(ids) and copy.consume_tokens(ids) and copy.is_accepting()
            assert is_taken is is_right, (schema, answer)
            assert jsonschema.Draft202012Validator(schema).is_valid(answer) is is_right


def test_a_grammar_that_the_model_can_write_stays_as_it_is(tokens: ConstraintTokens) -> None:
    for kind, value in (("json_schema", {"enum": ["é", "☀"]}), ("choice", ["é", RARE]), ("json_object", None)):
        text = grammar_of(kind, value)
        assert leave_out_unwritable(text, tokens.can_spell) is text
