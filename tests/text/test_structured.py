"""What a request says of its answer, as a grammar: which texts it takes, and what is refused and how."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import llguidance
import pytest

from headway.core.structured import StructuredOutputs, StructuredOutputsParams, StructureKind
from headway.errors import InvalidRequest
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.structured import structured_constraint, structured_grammar
from headway.text.tokenizer import Tokenizer
from text.grammar_walks import compiled, matches, walk


@pytest.fixture
def tokens(make_small: Callable[..., Tokenizer]) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(make_small("t r", "tr u", "tru e", "a b", '{ "', "Ċ Ċ"))


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
PAIRS = {
    "type": "array",
    "items": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "minItems": 2,
    "maxItems": 3,
}
POINTED = {
    "type": "object",
    "properties": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "left": {
                    "anyOf": [
                        {
                            "type": "object",
                            "properties": {
                                "left": {
                                    "anyOf": [{"$ref": "#/properties/tree/properties/left/anyOf/0"}, {"type": "null"}]
                                }
                            },
                            "additionalProperties": False,
                        },
                        {"type": "null"},
                    ]
                },
            },
        }
    },
}
ODD_TEXTS = ["a", "ab", 'q"\\ \n\t\x01\x7f', "ä✓😀", "| b", "start: x", "<|turn|>", "\u0000"]

TAKEN: list[tuple[StructureKind, Any, list[str], list[str]]] = [
    ("json_object", None, ["{}", '{"a": [1, {"b": null}]}', '{"ä": "✓ \\n"}'], ["[]", "1", '{"a": 1', '{ "a": 1}', ""]),
    ("json_schema", True, ["1", '"x"', "null", "[true, false]"], ["", "nul", "[1,  2]", "1 "]),
    ("json_schema", '{"type": "boolean"}', ["true", "false"], ["1", '"true"']),
    (
        "json_schema",
        PERSON,
        ['{"name": "Ann", "age": 3}', '{"name": "", "age": 120}'],
        ['{"name": "A"}', '{"name": "A", "age": 121}', '{"name": "A", "age": 3, "x": 1}', '{"age": 3, "name": ""}'],
    ),
    ("json_schema", TREE, ["{}", '{"children": [{}, {"children": [{}]}]}'], ['{"children": [1]}', '{"x": 1}']),
    (
        "json_schema",
        PAIRS,
        ['[{"a": 1}, {"a": 2}]'],
        ['[{"a": 1}]', '[{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]', "[{}, {}]"],
    ),
    (
        "json_schema",
        POINTED,
        ['{"tree": {"left": {"left": {"left": null}}}}', '{"tree": {"left": null}}'],
        ['{"tree": {"left": {"left": 3}}}'],
    ),
    ("json_schema", {"enum": ["a", 1, None, {"b": [2]}]}, ['"a"', "1", "null", '{"b": [2]}'], ['"b"', '{"b": [3]}']),
    ("json_schema", {"const": {"x": "é"}}, ['{"x": "é"}'], ['{"x": "e"}', "{}"]),
    ("json_schema", {"type": "string", "pattern": "^a[0-9]+$"}, ['"a1"', '"a99"'], ['"a"', '"ba1"', '"a1b"']),
    ("json_schema", {"type": "string", "pattern": "b"}, ['"b"', '"abc"'], ['"a"', '""']),
    ("json_schema", {"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"äöü"'], ['"a"', '"abcd"']),
    (
        "json_schema",
        {"type": "string", "format": "date"},
        ['"2026-01-31"'],
        ['"2026-13-01"', '"yesterday"', '"2026-1-31"'],
    ),
    ("json_schema", {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, ["0.5", "1.5", "1"], ["0", "1.6", "-1"]),
    ("json_schema", {"type": "integer", "multipleOf": 5}, ["5", "0", "100"], ["7", "51"]),
    ("json_schema", {"anyOf": [{"type": "integer"}, {"const": "x"}]}, ["1", '"x"'], ['"y"', "1.5"]),
    ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["1.5"]),
    ("json_schema", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 10}]}, ["3", "10"], ["2", "11"]),
    (
        "json_schema",
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
        ["{}", '{"n_a": 1, "n_b": 2}'],
        ['{"n_a": "x"}', '{"m": 1}'],
    ),
    ("json_schema", {"type": "object", "additionalProperties": {"type": "null"}}, ['{"a": null}'], ['{"a": 1}']),
    ("regex", "^(.*)$", ["", "abc", "a b"], ["a\nb"]),
    ("regex", "^(|.*)$", ["", "abc"], ["a\nb"]),
    ("regex", "(yes|no)", ["yes", "no"], ["y", "yesno", "^yes", ""]),
    ("regex", "^a|b$", ["a", "b"], ["^a", "b$", "ab"]),
    ("regex", "a/b\\.c\"'", ["a/b.c\"'"], ["a/bxc\"'"]),
    ("regex", "\\d{3}-\\w+", ["123-ab_9"], ["12-a", "123-"]),
    ("regex", "[äöü]+✓", ["äöü✓"], ["aou✓"]),
    ("regex", "a\\nb", ["a\nb"], ["a\\nb"]),
    ("choice", ODD_TEXTS, ODD_TEXTS, ["b", "aba", ""]),
    ("grammar", 'start: "a" b?\nb: /[0-9]+/', ["a", "a12"], ["", "12"]),
    ("grammar", 'root ::= "a" digit*\ndigit ::= [0-9]', ["a", "a12"], ["", "ab"]),
    ("grammar", 'start: e\ne: e "+" e | /[0-9]+/', ["1", "1+2+3"], ["1+", "+1"]),
    ("grammar", 'start: %json {"type": "boolean"}', ["true"], ["1"]),
]


@pytest.mark.case("so-ref-05", "so-array-obj-06", "so-backend-latch-03")
@pytest.mark.parametrize(("kind", "value", "taken", "refused"), TAKEN)
def test_the_matcher_takes_what_the_structure_says(
    tokens: llguidance.LLTokenizer, kind: StructureKind, value: Any, taken: list[str], refused: list[str]
) -> None:
    matcher = compiled(tokens, kind, value)
    assert [text for text in taken if not matches(tokens, matcher, text)] == []
    assert [text for text in refused if matches(tokens, matcher, text)] == []


@pytest.mark.case("so-backend-latch-03")
def test_one_structure_does_not_change_how_the_next_is_read(tokens: llguidance.LLTokenizer) -> None:
    for first, second in (("^(.*)$", "^(|.*)$"), ("^(|.*)$", "^(.*)$")):
        for expression in (first, second):
            assert matches(tokens, compiled(tokens, "regex", expression), "abc")
        with pytest.raises(InvalidRequest):
            compiled(tokens, "regex", "(unclosed")


REFUSED: list[tuple[StructureKind, Any, str]] = [
    ("json_schema", {"type": "string", "pattern": "^a(\\!$"}, "unclosed group"),
    (
        "json_schema",
        {"properties": {"a": {"items": {"not": {}}}}},
        '.properties.a.items cannot be enforced: Unimplemented keys: ["not"]',
    ),
    ("json_schema", {"if": {}, "then": {}}, '["if", "then"]'),
    ("json_schema", {"type": "array", "uniqueItems": True}, "uniqueItems"),
    (
        "json_schema",
        {"properties": {"x": {"$ref": "#/$defs/y"}}},
        ".properties.x cannot be enforced: Pointer '/$defs/y' does not exist",
    ),
    (
        "json_schema",
        {"properties": {"x": {"$ref": "https://a.b/c.json"}}},
        ".properties.x cannot be enforced: Resource 'https://a.b/c.json'",
    ),
    ("json_schema", {"properties": {"x": {"type": "strin"}}}, ".properties.x cannot be enforced: Invalid type: strin"),
    (
        "json_schema",
        {"properties": {"x": {"type": "string", "format": "colour"}}},
        ".properties.x cannot be enforced: Unknown format: colour",
    ),
    (
        "json_schema",
        {"properties": {"x": {"type": "string", "pattern": "a(?=b)"}}},
        ".properties.x cannot be enforced: regex",
    ),
    ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "use anyOf"),
    ("json_schema", {"enum": []}, "Unsatisfiable"),
    ("json_schema", {"$ref": "#"}, "nothing can match it"),
    ("json_schema", False, "takes some value"),
    ("json_schema", [], "must be a JSON schema"),
    ("json_schema", "{", "no JSON"),
    ("json_schema", {"const": float("nan")}, "json_schema.const is nan"),
    ("json_schema", {"const": {1, 2}}, "no JSON"),
    ("json_schema", {1: {}}, "has the key 1"),
    (
        "json_schema",
        {"type": "integer", "multipleOf": 20_001},
        "json_schema.multipleOf is 20001; all of a schema come to at most 20000",
    ),
    ("json_schema", {"type": "number", "multipleOf": 1.00001}, "json_schema.multipleOf is 1.00001"),
    ("json_schema", {"const": "a" * 4097}, "json_schema.const is a text of 4097 characters, at most 4096"),
    ("json_schema", {"pattern": "a" * 8193}, "8193 characters, at most 8192"),
    ("json_schema", {"patternProperties": {"a?" * 1001: {}}}, "at 1001 places of its expressions, at most 1000"),
    ("json_schema", {"enum": list(range(20_001))}, "over 20000 values"),
    ("regex", "(unclosed", "unclosed group"),
    ("regex", "a(?=b)", "look-around"),
    ("regex", "(a)\\1", "backreferences"),
    ("regex", "\\bfoo\\b", "lookarounds"),
    ("regex", "", "empty"),
    ("regex", 5, "no text"),
    ("regex", "\ud800", "lone surrogate"),
    ("regex", "a?" * 1001, "at 1001 places of its expressions, at most 1000"),
    ("choice", [], "0 texts; it must be a list of 1 to 10000"),
    ("choice", "ab", "no list"),
    ("choice", ["a", 5], "choice[1] is no text"),
    ("choice", ["a", ""], "choice[1] is empty"),
    ("choice", ["x"] * 10_001, "10001 texts"),
    ("choice", ["a" * 4097], "choice[0] is a text of 4097 characters"),
    ("grammar", 'root ::= "a"\nroot ::= "b"', "two rules named root"),
    ("grammar", 'start: "a"\nstart: "b"', "duplicate rule"),
    ("grammar", 'rout ::= "x"', "No 'root' rule found"),
    ("grammar", "((", "neither Lark"),
    ("grammar", '{"a": 1}\nstart: "x"', "begins with a brace"),
    ("grammar", '\n {"grammars": []}\nstart: "x"', "begins with a brace"),
    ("grammar", "start: foo", 'unknown name: "foo"'),
    ("grammar", "start: start", "nothing can match it"),
    ("grammar", "start: a\na: b\nb: a", "nothing can match it"),
    ("grammar", 'start: "a\0b"', "lexer error"),
    ("grammar", 'root ::= "\\q"', "Invalid escape"),
    ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "neither Lark"),
    ("grammar", "start: " + "(" * 9000 + '"a"' + ")" * 9000, "too deeply nested"),
    ("grammar", "x" * 32_769, "32769 characters, at most 32768"),
    ("grammar", "\n".join(f"r{i} ::= r{i + 1}" for i in range(501)), "501 EBNF rules, at most 500"),
    ("grammar", 'start: %json {"multipleOf": 1000000, "type": "integer"}', "multipleOf is 1000000"),
    ("structural_tag", {"type": "structural_tag", "format": {}}, "structures"),
    ("structural_tag", {"structures": [], "triggers": ["<"]}, "structures must be a list of 1 to"),
    ("structural_tag", {"structures": [{"begin": "[x", "schema": {}}], "triggers": ["<"]}, "starts with none"),
    ("structural_tag", {"structures": [{"begin": "<x", "schema": 1}], "triggers": ["<"]}, "structures[0].schema"),
    ("structural_tag", {"structures": [{"begin": "<x", "end": 1}], "triggers": ["<"]}, "structures[0].end"),
    ("structural_tag", {"structures": [{"begin": "<x"}], "triggers": ["<" * 257]}, "257 characters, at most 256"),
]


@pytest.mark.case("so-failopen-01", "grammar-segv-06")
@pytest.mark.parametrize(("kind", "value", "words"), REFUSED)
def test_what_cannot_be_enforced_is_refused_with_the_field_and_the_reason(
    tokens: llguidance.LLTokenizer, kind: StructureKind, value: Any, words: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(tokens, kind, value)
    assert words in caught.value.message
    assert caught.value.param is not None
    assert caught.value.param.startswith(kind)
    assert len(caught.value.message) < 1000


def test_a_schema_that_is_deeper_than_the_limit_is_refused_without_recursion() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest, match="over 100 levels"):
        structured_grammar(StructuredOutputs(kind="json_schema", value=schema))


def test_a_callers_own_options_for_white_space_are_not_taken(tokens: llguidance.LLTokenizer) -> None:
    schema = {"type": "array", "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    matcher = compiled(tokens, "json_schema", schema)
    assert matches(tokens, matcher, "[1, 2]")
    assert not matches(tokens, matcher, "[1,  2]")
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        compiled(tokens, "json_schema", schema | {"uniqueItems": True})


def test_an_answer_that_is_cut_short_is_a_beginning_of_json(tokens: llguidance.LLTokenizer) -> None:
    matcher = compiled(tokens, "json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 1000})
    assert walk(tokens, matcher, random.Random(1), max_tokens=10) is None
    assert not matches(tokens, matcher, "[1, 2]")


def test_a_structural_tags_grammar_holds_from_its_trigger_on(tokens: llguidance.LLTokenizer) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [
            {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
            {"begin": "<f=b>", "schema": PERSON, "end": ""},
        ],
        "triggers": ["<f=", "(x"],
    }
    for value in (tag, json.dumps(tag)):
        constraint = structured_constraint(StructuredOutputs(kind="structural_tag", value=value, param="p"))
        assert re.compile(constraint.trigger).search("text <f=a>").span() == (5, 8)  # type: ignore[union-attr]
        assert re.search(constraint.trigger, "(x") is not None
        matcher = compiled(tokens, "structural_tag", value)
        assert matches(tokens, matcher, "<f=a>12</f>")
        assert matches(tokens, matcher, '<f=b>{"name": "x", "age": 1}')
        assert not matches(tokens, matcher, "<f=a>x</f>")
        assert not matches(tokens, matcher, "<f=c>1</f>")
        assert constraint.param == "p"


def test_all_but_a_structural_tag_hold_from_the_beginning() -> None:
    assert structured_constraint(StructuredOutputs(kind="json_object")).trigger == ""


def test_the_same_structure_is_the_same_text() -> None:
    texts = {structured_grammar(StructuredOutputs(kind="json_schema", value=dict(PERSON))).text() for _ in range(2)}
    assert len(texts) == 1


def test_vllms_names_make_a_structure() -> None:
    assert StructuredOutputsParams(json=PERSON) == StructuredOutputs(
        kind="json_schema", value=PERSON, param="structured_outputs.json"
    )
    assert StructuredOutputsParams(json_object=True).kind == "json_object"
    assert StructuredOutputsParams(choice=["a"]).value == ["a"]
    for names in ({}, {"json_object": False}, {"regex": "a", "choice": ["b"]}):
        with pytest.raises(InvalidRequest, match="exactly one of"):
            StructuredOutputsParams(**names)  # type: ignore[arg-type]
