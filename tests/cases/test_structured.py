"""Structured output, as others have reported it: what is bad is a 400 and harms nobody, what is good is exact."""

import json
import threading
from typing import Any

import pytest

from cases.asking import CHAT, COMPLETIONS, answer, chunks, refused
from e2e.serving import Server

BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def text_of(told: Any) -> str:
    choice = told["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.case("so-failopen-01")
@BOTH
@pytest.mark.parametrize("strict", [True, False])
def test_a_pattern_that_is_none_is_a_400_before_anything_is_said(server: Server, path: str, strict: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(\\!$"}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}
    for stream in (False, True):
        message = refused(
            server, "response_format.json_schema.schema", path, response_format=wanted, stream=stream, max_tokens=16
        )
        assert "response_format.json_schema.schema.properties.a" in message
        assert "unclosed group" in message


@pytest.mark.case("so-crash-02")
def test_bad_structures_harm_neither_the_server_nor_a_running_stream(server: Server) -> None:
    running: list[Any] = []
    reader = threading.Thread(
        target=lambda: running.extend(chunks(server, COMPLETIONS, max_tokens=200, ignore_eos=True))
    )
    reader.start()
    assert text_of(answer(server, structured_outputs={"regex": "(yes|no)"})) in ("yes", "no")
    assert server.get("/health").status_code == 200
    refused(server, "structured_outputs.regex", structured_outputs={"regex": "(unclosed"})
    assert server.get("/health").status_code == 200
    two_roots = 'root ::= "a"\nroot ::= "b"'
    assert "root" in refused(server, "structured_outputs.grammar", structured_outputs={"grammar": two_roots})
    assert server.get("/health").status_code == 200
    assert text_of(answer(server))
    reader.join()
    assert running[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.case("so-backend-latch-03")
@BOTH
def test_the_order_of_expressions_does_not_change_their_answers(server: Server, path: str) -> None:
    def say(expression: str) -> str:
        return text_of(answer(server, path, structured_outputs={"regex": expression}))

    first, second = "^(.*)$", "^(|.*)$"
    told = [say(first), say(second)]
    assert [say(second), say(first)] == told[::-1]
    assert "\n" not in told[0] + told[1]


@pytest.mark.case("so-trunc-08")
@BOTH
def test_an_answer_that_is_cut_short_says_so_and_is_not_mended(server: Server, path: str) -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 999}, "minItems": 500}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    told = answer(server, path, response_format=wanted, max_tokens=10)
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 10
    text = text_of(told)
    assert len(text) == 10  # a token is a character
    numbers = json.loads(text.rpartition(",")[0] + "]")
    assert numbers
    assert all(100 <= number <= 999 for number in numbers)
    streamed = "".join(
        chunk["choices"][0]["delta"].get("content", "") if path == CHAT else chunk["choices"][0]["text"]
        for chunk in chunks(server, path, response_format=wanted, max_tokens=10)
        if chunk["choices"]
    )
    assert streamed == text


@pytest.mark.case("grammar-segv-06")
@BOTH
@pytest.mark.parametrize("is_own_name", [True, False])
def test_a_grammar_without_a_root_is_a_400_and_an_empty_one_is_none(
    server: Server, path: str, is_own_name: bool
) -> None:
    def field(grammar: str) -> dict[str, Any]:
        return {"structured_outputs": {"grammar": grammar}} if is_own_name else {"grammar": grammar}

    param = "structured_outputs.grammar" if is_own_name else "grammar"
    assert "root" in refused(server, param, path, **field('rout ::= "x"'))
    assert "neither Lark" in refused(server, param, path, **field("(("))
    assert text_of(answer(server, path, **field(""))) == text_of(answer(server, path))
    assert text_of(answer(server, path, **field('root ::= "x" [0-9]'))).startswith("x")


@pytest.mark.case("so-array-obj-06", "so-ref-05")
@BOTH
def test_bounds_and_references_hold_in_answers(server: Server, path: str) -> None:
    item = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 10}}, "required": ["a"]}
    schema = {
        "$defs": {"item": {**item, "additionalProperties": False}},
        "type": "array",
        "items": {"$ref": "#/$defs/item"},
        "minItems": 2,
        "maxItems": 3,
    }
    told = answer(server, path, structured_outputs={"json": schema}, max_tokens=60)
    assert told["choices"][0]["finish_reason"] == "stop"
    items = json.loads(text_of(told))
    assert 2 <= len(items) <= 3
    assert all(list(each) == ["a"] and 10 <= each["a"] <= 99 for each in items)
