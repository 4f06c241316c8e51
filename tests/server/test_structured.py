"""Structured output at the door: which of a body's fields says what, and what is refused by its name."""

from typing import Any

import httpx2
import pytest

from headway.core.structured import StructuredOutputs
from server.conftest import FakeService

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": "m", "prompt": "x"},
    "/basic_generate": {"model": "m", "prompt": "x"},
}
OPENAI_ROUTES = tuple(route for route in ROUTES if route.startswith("/v1"))
SCHEMA = {"type": "object", "properties": {"a": {"const": None}}, "required": ["a"]}
TAG = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}


def wanted(kind: Any, value: Any, param: str) -> StructuredOutputs:
    return StructuredOutputs(kind=kind, value=value, param=param)


EVERYWHERE: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"structured_outputs": {"json": SCHEMA}}, wanted("json_schema", SCHEMA, "structured_outputs.json")),
    ({"structured_outputs": {"json": "{}"}}, wanted("json_schema", "{}", "structured_outputs.json")),
    ({"structured_outputs": {"json": True}}, wanted("json_schema", True, "structured_outputs.json")),
    ({"structured_outputs": {"regex": "a|b", "json": None}}, wanted("regex", "a|b", "structured_outputs.regex")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, wanted("choice", ["a", "b"], "structured_outputs.choice")),
    ({"structured_outputs": {"grammar": "root ::= x"}}, wanted("grammar", "root ::= x", "structured_outputs.grammar")),
    ({"structured_outputs": {"json_object": True}}, wanted("json_object", None, "structured_outputs.json_object")),
    (
        {"structured_outputs": {"structural_tag": TAG}},
        wanted("structural_tag", TAG, "structured_outputs.structural_tag"),
    ),
    (
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True, "disable_fallback": True}},
        wanted("regex", "a", "structured_outputs.regex"),
    ),
    ({"grammar": "root ::= x"}, wanted("grammar", "root ::= x", "grammar")),
    ({"grammar": ""}, None),
    ({"structured_outputs": {"grammar": ""}}, None),
    ({"structured_outputs": None}, None),
    ({"guided_regex": ""}, None),
]
FORMATS: list[tuple[dict[str, Any], StructuredOutputs | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, wanted("json_object", None, "response_format")),
    *(
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA} | more},
            wanted("json_schema", SCHEMA, "response_format.json_schema.schema"),
        )
        for more in ({}, {"strict": True}, {"strict": False, "description": "d"}, {"strict": None})
    ),
    ({"type": "structural_tag"} | TAG, wanted("structural_tag", TAG, "response_format")),
]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_field_becomes_the_structure_that_is_wanted(
    client: httpx2.AsyncClient, service: FakeService, route: str
) -> None:
    given = [*EVERYWHERE, *(({"response_format": each}, wanted) for each, wanted in FORMATS if route in OPENAI_ROUTES)]
    for fields, structure in given:
        response = await client.post(route, json=ROUTES[route] | fields)
        assert response.status_code == 200, (fields, response.text)
        assert service.requests[-1].sampling.structured_outputs == structure


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of json, regex"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "has json and regex"),
    ({"structured_outputs": []}, "structured_outputs", "an object"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn", "no field"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "a string"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]", "a string"),
    ({"structured_outputs": {"regex": "a"}, "grammar": "x"}, "grammar", "structured_outputs.regex and grammar both"),
    ({"grammar": 5}, "grammar", "a string"),
    ({"guided_json": {}}, "guided_json", "structured_outputs: {json: ...}"),
    ({"guided_choice": ["a"]}, "guided_choice", "structured_outputs: {choice: [...]}"),
    ({"guided_regex": "a"}, "guided_regex", "structured_outputs: {regex: ...}"),
    ({"guided_grammar": "a"}, "guided_grammar", "structured_outputs: {grammar: ...}"),
]
FORMATS_REFUSED: list[tuple[Any, str, str]] = [
    ({}, "response_format.type", "missing"),
    ("json", "response_format", "an object"),
    (5, "response_format", "an object"),
    ({"type": "TEXT"}, "response_format.type", "json_schema"),
    ({"type": "json_schema"}, "response_format.json_schema", "missing"),
    ({"type": "json_schema", "schema": {"type": "object"}}, "response_format.json_schema.schema", "belongs"),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema", "missing"),
    ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name", "missing"),
    ({"type": "json_schema", "json_schema": {"name": "", "schema": {}}}, "response_format.json_schema.name", "1"),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}},
        "response_format.json_schema.schema",
        "obj",
    ),
    (
        {"type": "json_schema", "strict": True, "json_schema": {"name": "x", "schema": {}}},
        "response_format.strict",
        "no",
    ),
    (
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
        "response_format.json_schema",
        "another type",
    ),
    ({"type": "text", "triggers": ["a"]}, "response_format.triggers", "another type"),
    ({"type": "structural_tag", "triggers": ["a"]}, "response_format.structures", "missing"),
]


@pytest.mark.case("rf-shape-05", "so-strict-outer-07")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("route", OPENAI_ROUTES)
async def test_what_names_no_structure_is_a_400_that_names_the_field(
    client: httpx2.AsyncClient, service: FakeService, route: str, is_stream: bool
) -> None:
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    refused = [
        *REFUSED,
        *(({"response_format": each}, param, words) for each, param, words in FORMATS_REFUSED),
        (both, "response_format", "structured_outputs.regex and response_format both"),
    ]
    for fields, param, words in refused:
        response = await client.post(route, json=ROUTES[route] | fields | {"stream": is_stream})
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert error["param"] == param, (fields, error)
        assert words in error["message"], (fields, error)
    assert service.requests == []
