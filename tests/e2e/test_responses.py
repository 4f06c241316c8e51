"""/v1/responses with the demo model: structured answers, a call that must be made, turns that go on from the cache."""

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from serving import Server

TOWN = {
    "type": "object",
    "properties": {"town": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": TOWN, "strict": True}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def test_turns_with_a_call_and_a_structured_answer_are_valid_and_go_on_from_the_cache(
    server: Server, client: openai.OpenAI
) -> None:
    first = client.responses.create(
        model="demo", input="What is the weather in Oslo?", tools=[TOOL], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=200, temperature=0,
    )  # fmt: skip
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    jsonschema.validate(json.loads(call.arguments), TOWN)
    wanted: Any = {"type": "json_schema", "name": "town", "schema": TOWN, "strict": True}
    asked: dict[str, Any] = {
        "model": "demo",
        "input": [{"type": "function_call_output", "call_id": call.call_id, "output": "error: no such town"}],
        "previous_response_id": first.id,
        "tools": [TOOL],
        "tool_choice": "none",
        "text": {"format": wanted},
        "max_output_tokens": 200,
        "temperature": 0,
    }
    second = client.responses.create(**asked)
    jsonschema.validate(json.loads(second.output_text), TOWN)
    assert first.usage is not None
    assert second.usage is not None
    cached = second.usage.input_tokens_details.cached_tokens
    assert first.usage.input_tokens - 32 <= cached <= second.usage.input_tokens
    with client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response()
    assert streamed.output_text == second.output_text


def test_a_schema_that_can_not_be_kept_to_is_refused_by_its_place(server: Server, client: openai.OpenAI) -> None:
    wrong = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    wanted: Any = {"type": "json_schema", "name": "x", "schema": wrong, "strict": True}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="demo", input="hi", text={"format": wanted})
    assert (caught.value.param or "").startswith("text.format.schema")
    assert "uniqueItems" in caught.value.message
    tool: Any = {"type": "function", "name": "f", "parameters": wrong, "strict": True}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="demo", input="hi", tools=[tool], tool_choice="required")
    assert (caught.value.param or "").startswith("tools")
    assert "function." not in (caught.value.param or "")
