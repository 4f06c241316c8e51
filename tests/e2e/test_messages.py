"""Anthropic's official client with the demo model: calls and answers that are forced, and what the cache holds."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import jsonschema
import pytest
from serving import Server

DOCS = Path(__file__).parents[2] / "docs" / "messages.md"
SCHEMA = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["town", "days"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "get_weather", "description": "The weather of some days", "input_schema": SCHEMA, "strict": True}
ASKED: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 100_000,
    "extra_body": {"temperature": 0},
    "system": "You are brief.",
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_calls_that_must_be_made_are_valid_and_a_conversation_goes_on_from_the_cache(
    client: anthropic.Anthropic,
) -> None:
    messages: list[Any] = list(ASKED["messages"])
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    rates = []
    for turn in range(4):
        body = ASKED | {"messages": messages, "tools": [TOOL]}
        with client.messages.stream(**body, tool_choice=choice) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        [call] = message.content
        assert call.type == "tool_use"
        jsonschema.validate(call.input, SCHEMA)
        cached = message.usage.cache_read_input_tokens or 0
        num_prompt = message.usage.input_tokens + cached
        rates.append(cached / num_prompt)
        counted = {name: body[name] for name in ("model", "messages", "system", "tools")}
        assert client.messages.count_tokens(**counted).input_tokens == num_prompt
        failed: Any = {"type": "tool_result", "tool_use_id": call.id, "content": f"no day {turn}", "is_error": True}
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [failed]}]
    assert min(rates[1:]) > 0.6, rates


def test_an_answer_matches_its_schema_whole_and_streamed(client: anthropic.Anthropic) -> None:
    body = ASKED | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    whole = client.messages.create(**body, timeout=120)
    [block] = whole.content
    assert block.type == "text"
    jsonschema.validate(json.loads(block.text), SCHEMA)
    with client.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == block.text
    assert whole.stop_reason == "end_turn"


def test_a_message_goes_on_with_what_was_begun(client: anthropic.Anthropic) -> None:
    begun = {"role": "assistant", "content": "The capital of France is"}
    body = ASKED | {"max_tokens": 8, "messages": [{"role": "user", "content": "What is the capital of France?"}, begun]}
    [block] = client.messages.create(**body).content
    assert block.type == "text"
    assert block.text.startswith(" Paris")


def test_the_docs_code_answers(server: Server) -> None:
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("http://localhost:8000", server.url), names)
    names["client"].close()
    assert names["message"].content[0].text


CODING_TOOL_BODY: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 60,
    "stream": True,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=%s;"},
        {"type": "text", "text": "You write code. " * 40, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>\n"},
                {"type": "text", "text": "List the files.", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "tools": [
        {
            "name": "mcp__files__" + "x" * 80,
            "description": "Runs a command",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
                "required": ["command"],
                "additionalProperties": False,
            },
        }
    ],
    "metadata": {"user_id": '{"device_id":"abc","account_uuid":"","session_id":"d"}'},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "medium"},
}


def test_what_coding_tools_send_is_taken_and_found_in_the_cache_again(server: Server) -> None:
    cached = []
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        for number in ("00000", "fffff"):
            content = json.dumps(CODING_TOOL_BODY).replace("%s", number)
            headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
            response = client.post("/v1/messages?beta=true", content=content, headers=headers)
            assert response.status_code == 200, response.text
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
            assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
            cached.append(events[0]["message"]["usage"]["cache_read_input_tokens"])
    assert cached[1] > cached[0]
    assert cached[1] > 100
