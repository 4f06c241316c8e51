"""A field that is null is a field that is not there, known or unknown, at every depth of every API's body."""

from typing import Any

import httpx2
import pytest
from tests.server.anthropic_messages import HISTORY, TOOL
from tests.server.conftest import FakeService

from headway.core.request import GenerateRequest

SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}}}
FUNCTION = {"name": "get_time", "description": "The time in a town", "parameters": SCHEMA, "strict": True}
NAMED = {"type": "function", "function": {"name": "get_time"}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "time in Oslo?"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "function": {"name": "get_time", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "12:00"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "stream": True,
    "stream_options": {"include_usage": True},
}
RESPONSE: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "time in Oslo?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Oslo."}]},
        {"type": "function_call", "call_id": "a", "name": "get_time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "12:00"},
    ],
    "tools": [{"type": "function"} | FUNCTION],
    "tool_choice": {"type": "function", "name": "get_time"},
    "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    "reasoning": {"effort": "none"},
}
MESSAGE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 50,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": HISTORY,
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "get_time"},
    "thinking": {"type": "disabled"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "metadata": {"user_id": "ann"},
}
OF_OTHERS = ("parameters", "schema", "input_schema", "arguments")
"""What these hold is not the API's: there, null is a value."""


def with_nulls(value: Any) -> Any:
    """Each object of the API's has one more field, which no API knows."""
    if isinstance(value, list):
        return [with_nulls(each) for each in value]
    if not isinstance(value, dict):
        return value
    is_call = value.get("type") == "tool_use"
    kept = {
        name: inner if name in OF_OTHERS or (is_call and name == "input") else with_nulls(inner)
        for name, inner in value.items()
    }
    return kept | {"of_tomorrow": None}


def asked(request: GenerateRequest) -> tuple[Any, ...]:
    return request.prompt, request.sampling, request.tool_use, request.tenant


@pytest.mark.parametrize(
    ("url", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE)],
)
async def test_a_null_changes_nothing(
    client: httpx2.AsyncClient, service: FakeService, url: str, body: dict[str, Any]
) -> None:
    for each in (body, with_nulls(body)):
        answer = await client.post(url, json=each)
        assert answer.status_code == 200, answer.text
    plain, null = service.requests
    assert asked(plain) == asked(null)


async def test_a_calls_type_and_arguments_may_be_null(client: httpx2.AsyncClient, service: FakeService) -> None:
    """As models of clients write them: {"type": null} has no type, which is a function's."""
    question, called, result = CHAT["messages"]
    call = called["tool_calls"][0]
    null = call | {"type": None, "function": {"name": "get_time", "arguments": None}}
    for each in (call, null):
        body = CHAT | {"messages": [question, called | {"tool_calls": [each]}, result]}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
    kinds = [request.prompt.messages[1]["tool_calls"][0]["type"] for request in service.requests]  # type: ignore[union-attr]
    assert kinds == ["function", "function"]
