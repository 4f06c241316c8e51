"""A name is what an answer's reader takes it for: written in another way it is no other, and said twice it is one."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import llguidance
import pytest

from headway.errors import InvalidRequest
from headway.text.constrained_vocabulary import make_llguidance_tokenizer
from headway.text.grammar import Grammar, json_part
from headway.text.grammar_compiler import compile_grammar
from headway.text.tokenizer import Tokenizer
from text.grammar_walks import compiled, matches

NAMED: dict[str, Any] = {"type": "object", "properties": {"ab": {"type": "integer"}}}
STARRED: dict[str, Any] = {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}


@pytest.fixture
def tokens(make_small: Callable[..., Tokenizer]) -> llguidance.LLTokenizer:
    return make_llguidance_tokenizer(make_small())


def takes(tokens: llguidance.LLTokenizer, schema: Any, text: str) -> bool:
    return matches(tokens, compiled(tokens, "json_schema", schema), text)


@pytest.mark.parametrize(
    "schema",
    [
        NAMED,
        STARRED,
        NAMED | {"additionalProperties": {"type": "string"}},
        {"allOf": [NAMED, {"type": "object", "required": ["c"]}]},
        {"type": "array", "items": {"anyOf": [NAMED, {"type": "null"}]}},
        {"$ref": "#/$defs/named", "$defs": {"named": NAMED}},
    ],
)
@pytest.mark.parametrize("name", ["\\u0061b", "a\\u0062", "\\u0061\\u0062"])
def test_a_name_is_not_written_in_another_way(tokens: llguidance.LLTokenizer, schema: Any, name: str) -> None:
    text = f'{{"{name}": "x", "c": "y"}}'
    text = f"[{text}]" if schema.get("type") == "array" else text
    assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    assert not takes(tokens, schema, text)


def test_other_names_and_line_breaks_in_them_are_taken(tokens: llguidance.LLTokenizer) -> None:
    for text in ('{"ab": 1, "abc": "x"}', '{"b": "x", "é": []}', '{"a\\nb": "\\t"}'):
        assert takes(tokens, NAMED, text), text
    # Nothing is said of a name here, so it may be written in any way.
    assert takes(tokens, {"type": "object"}, '{"a\\u001f": 1}')
    assert takes(tokens, NAMED | {"additionalProperties": False}, '{"ab": 1}')


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "minProperties": 2}, ".minProperties is 2, at most 1"),
        ({"type": "object", "required": ["a", "a"], "minProperties": 3}, ".minProperties is 3, at most 2"),
        (
            {"type": "array", "items": {"type": "object", "minProperties": 2}},
            ".items.minProperties is 2, at most 1",
        ),
    ],
)
def test_minimums_that_a_name_said_twice_would_reach_are_refused(
    tokens: llguidance.LLTokenizer, schema: Any, place: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiled(tokens, "json_schema", schema)
    assert place in caught.value.message


def test_minimums_that_only_another_name_reaches_are_enforced(tokens: llguidance.LLTokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 2}
    for text in ('{"a": 1}', '{"a": 1, "a": 2}', '{"b": 1}', '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "b": 3}'):
        assert takes(tokens, schema, text) is jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
    assert takes(tokens, {"const": {"minProperties": 5}}, '{"minProperties": 5}')
    assert takes(tokens, {"properties": {"minProperties": {"type": "null"}}}, '{"minProperties": null}')


def test_a_lenient_schema_leaves_out_what_cannot_be_enforced(tokens: llguidance.LLTokenizer) -> None:
    part = json_part({"type": "object", "minProperties": 2}, is_lenient=True)
    assert not compile_grammar(tokens, Grammar("start: @a", {"a": part}).text()).is_error()
