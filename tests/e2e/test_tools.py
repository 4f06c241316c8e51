"""Tools with the demo model: calls that must be made are valid whatever the model would say, and conversations go on
from what the cache holds."""

import json
from typing import Any

import jsonschema
import openai
import pytest
from serving import Server

WEATHER = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["town", "unit", "days"],
    "additionalProperties": False,
}
NOTE = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 30}, "tags": {"type": "array", "maxItems": 2,
                   "items": {"type": "string", "maxLength": 8}}},
    "required": ["text"],
    "additionalProperties": False,
}  # fmt: skip
SCHEMAS = {"get_weather": WEATHER, "write_note": NOTE}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema,
                                      "strict": True}}
    for name, schema in SCHEMAS.items()
]  # fmt: skip
ASKED: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
    "tools": TOOLS,
    "max_tokens": 200,
    "temperature": 0,
}


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def checked_calls(message: Any) -> list[tuple[str, Any]]:
    calls = [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls]
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])
    return calls


def test_a_call_that_must_be_made_is_valid(server: Server, client: openai.OpenAI) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(
            **ASKED | {"temperature": 1.5}, seed=seed, tool_choice="required", parallel_tool_calls=False
        )
        assert answer.choices[0].finish_reason == "tool_calls"
        assert answer.choices[0].message.content is None
        assert len(checked_calls(answer.choices[0].message)) == 1


def test_a_call_that_is_cut_is_told_as_far_as_it_is(server: Server, client: openai.OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "write_note"}}
    whole = client.chat.completions.create(**ASKED, tool_choice=choice)
    [call] = whole.choices[0].message.tool_calls or []
    cut = client.chat.completions.create(**ASKED | {"max_tokens": 16}, tool_choice=choice)
    assert cut.choices[0].finish_reason == "length"
    [begun] = cut.choices[0].message.tool_calls or []
    assert call.function.arguments.startswith(begun.function.arguments)
    assert begun.function.arguments != call.function.arguments


@pytest.mark.case("tool-parallel-false-06")
def test_a_named_tool_is_called_once_and_streamed_alike(server: Server, client: openai.OpenAI) -> None:
    for name in SCHEMAS:
        choice: Any = {"type": "function", "function": {"name": name}}
        whole = client.chat.completions.create(**ASKED, tool_choice=choice)
        [(called, arguments)] = checked_calls(whole.choices[0].message)
        assert called == name
        assert whole.choices[0].finish_reason == "stop"
        with client.chat.completions.stream(**ASKED, tool_choice=choice) as stream:
            streamed = stream.get_final_completion()
        assert checked_calls(streamed.choices[0].message) == [(name, arguments)]
        assert whole.usage is not None
        details = whole.usage.completion_tokens_details
        assert details is not None
        assert (details.model_extra or {})["forced_tokens"] > 5


def test_calls_and_a_structured_answer_in_one_request(server: Server, client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(**ASKED, response_format=form)
    message = answer.choices[0].message
    if message.tool_calls:
        checked_calls(message)
    else:
        jsonschema.validate(json.loads(message.content or ""), schema)


def test_a_schema_that_can_not_be_enforced_is_a_400(server: Server, client: openai.OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a(\\!$"}}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": bad, "strict": True}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASKED | {"tools": [tool]}, tool_choice="required")


@pytest.mark.case("kv-order-07")
def test_ten_turns_of_calls_go_on_from_the_cache(server: Server, client: openai.OpenAI) -> None:
    """What a turn sent and got is not computed again: each prompt but for its last result and a block is found."""
    messages: list[Any] = [{"role": "user", "content": "Note the weather of ten days."}]
    rates = []
    for turn in range(10):
        answer = client.chat.completions.create(
            **ASKED | {"messages": messages}, tool_choice="required", parallel_tool_calls=False
        )
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        rates.append((usage.prompt_tokens_details.cached_tokens or 0) / usage.prompt_tokens)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for each in message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": each.id, "content": f"Day {turn}: fine."})
    print("prefix hit rates:", [f"{rate:.0%}" for rate in rates])
    assert min(rates[1:]) > 0.8
