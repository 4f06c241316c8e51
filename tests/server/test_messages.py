"""/v1/messages: what reaches the service."""

import json
from typing import Any

import httpx2
import pytest
from tests.server.anthropic_messages import ASKED, HISTORY, QUESTION, SCHEMA, TOOL, TOOLS, URL, result, text, use
from tests.server.conftest import FakeService

from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.tools import ToolUse


async def generate(client: httpx2.AsyncClient, service: FakeService, **fields: Any) -> GenerateRequest:
    response = await client.post(URL, json=ASKED | fields)
    assert response.status_code == 200, response.text
    return service.requests[-1]


async def rendered(client: httpx2.AsyncClient, service: FakeService, **fields: Any) -> list[Any]:
    prompt = (await generate(client, service, **fields)).prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


async def test_every_field_has_its_meaning(client: httpx2.AsyncClient, service: FakeService) -> None:
    request = await generate(
        client,
        service,
        system="Be brief.",
        stop_sequences=["END", "STOP"],
        temperature=0,
        top_p=0.9,
        top_k=20,
        metadata={"user_id": "someone"},
        thinking={"type": "enabled", "budget_tokens": 20},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        inference_geo="here",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        container=None,
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.9, 20)
    assert (sampling.stop, sampling.max_tokens, sampling.lowers_max_tokens) == (("END", "STOP"), 50, True)
    assert sampling.thinking_token_budget == 20
    structured = sampling.structured_outputs
    assert structured is not None
    assert (structured.kind, structured.value) == ("json_schema", SCHEMA)
    assert structured.param == "output_config.format.schema"
    assert request.tenant == "someone"
    assert request.request_id.startswith("msg_")
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (True, False)


async def test_a_models_own_defaults_hold_where_nothing_is_said(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.defaults = {"temperature": 0.25, "top_k": 5}
    assert (await generate(client, service)).sampling.temperature == 0.25
    assert (await generate(client, service, temperature=1.0)).sampling.temperature == 1.0
    assert service.requests[-1].sampling.top_k == 5


@pytest.mark.parametrize(
    ("thinking", "is_on", "budget"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "adaptive", "display": "omitted"}, True, None),
        ({"type": "enabled", "budget_tokens": 49, "display": "summarized"}, True, 49),
    ],
)
async def test_thinking_is_a_switch_of_the_template_and_a_budget(
    client: httpx2.AsyncClient, service: FakeService, thinking: Any, is_on: bool, budget: int | None
) -> None:
    request = await generate(client, service, thinking=thinking)
    assert isinstance(request.prompt, ChatPrompt)
    assert {**request.prompt.usual_kwargs, **request.prompt.template_kwargs} == {"enable_thinking": is_on}
    assert request.sampling.thinking_token_budget == budget


async def test_tools_and_their_use_reach_the_service(client: httpx2.AsyncClient, service: FakeService) -> None:
    for choice, wanted in (
        (None, ToolUse()),
        ({"type": "auto"}, ToolUse()),
        ({"type": "none"}, ToolUse("none")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolUse("required", is_parallel=False)),
        ({"type": "tool", "name": "get_time"}, ToolUse("named", "get_time")),
    ):
        request = await generate(client, service, **TOOLS | {"tool_choice": choice})
        assert request.tool_use == wanted
        assert isinstance(request.prompt, ChatPrompt)
        tools = request.prompt.tools
        assert tools is not None
        function = {"name": "get_time", "description": "The time in a town", "parameters": SCHEMA, "strict": True}
        assert tools[0] == {"type": "function", "function": function}
        # In the order that was sent: a prompt is the same each turn.
        assert json.dumps(tools[0]["function"]) == json.dumps(function)
        assert tools[1]["function"]["name"] == "x" * 128
    for tools in ([], None):
        prompt = (await generate(client, service, tools=tools)).prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.tools is None


async def test_fields_of_a_tool_that_ask_for_nothing_are_taken(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    more = {
        "cache_control": {"type": "ephemeral"},
        "eager_input_streaming": True,
        "defer_loading": False,
        "allowed_callers": ["direct"],
        "input_examples": [],
        "description": None,
    }
    request = await generate(client, service, tools=[TOOL | more])
    assert isinstance(request.prompt, ChatPrompt)
    function = {"name": "get_time", "parameters": SCHEMA, "strict": True}
    assert request.prompt.tools == [{"type": "function", "function": function}]


async def test_a_history_is_told_as_templates_know_it(client: httpx2.AsyncClient, service: FakeService) -> None:
    told = await rendered(client, service, messages=HISTORY)
    functions = [
        {"name": "get_time", "arguments": each} for each in ({"zeta": "Oslo"}, {"zeta": "Lima", "alpha": None})
    ]
    assert told == [
        QUESTION,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": function}
                for call_id, function in zip(("toolu_a", "toolu_b"), functions, strict=True)
            ],
            "reasoning_content": "Two towns.",
            "reasoning": "Two towns.",
        },
        {"role": "tool", "tool_call_id": "toolu_a", "content": "12:00", "name": "get_time"},
        {"role": "tool", "tool_call_id": "toolu_b", "content": "Error: no such\ntown", "name": "get_time"},
        {"role": "user", "content": "Well?"},
    ]


@pytest.mark.parametrize(
    ("content", "is_error", "told"),
    [
        ("12:00", False, "12:00"),
        ("12:00", None, "12:00"),
        ([text("12:"), text("00")], False, "12:\n00"),
        (None, False, ""),
        ([], False, ""),
        (None, True, "Error: "),
        ("not found", True, "Error: not found"),
        ("Error: Exit code 1", True, "Error: Exit code 1"),
    ],
)
async def test_a_result_is_text_and_a_failure_is_told_as_one(
    client: httpx2.AsyncClient, service: FakeService, content: Any, is_error: bool | None, told: str
) -> None:
    calls = {"role": "assistant", "content": [use("a")]}
    results = {"role": "user", "content": [result("a", content, is_error=is_error)]}
    messages = await rendered(client, service, messages=[QUESTION, calls, results])
    assert messages[-1] == {"role": "tool", "tool_call_id": "a", "content": told, "name": "get_time"}


async def test_messages_of_one_role_in_a_row_are_one(client: httpx2.AsyncClient, service: FakeService) -> None:
    def user(content: Any) -> dict[str, Any]:
        return {"role": "user", "content": content}

    def assistant(content: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": content}

    messages = [
        user("a"),
        user([text("b"), text("c")]),
        assistant("The answer"),
        assistant([text(" is"), use("1")]),
        assistant([use("2")]),
        user([result("2")]),
        user([result("1")]),
        user("d"),
    ]
    told = await rendered(client, service, messages=messages)
    assert [(message["role"], message["content"]) for message in told] == [
        ("user", "a\nb\nc"),
        ("assistant", "The answer is"),
        ("tool", "12:00"),
        ("tool", "12:00"),
        ("user", "d"),
    ]
    assert [message.get("tool_call_id") for message in told[2:4]] == ["1", "2"]


async def test_a_system_prompt_is_text_without_what_is_for_billing(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    blocks = [
        text("x-anthropic-billing-header: cc_version=2.1; cch=12345;"),
        text("Be brief.", cache_control={"type": "ephemeral"}),
        text("And kind."),
    ]
    told = await rendered(client, service, system=blocks)
    assert told[0] == {"role": "system", "content": "Be brief.\nAnd kind."}
    for nothing in (None, "", [], blocks[:1]):
        assert (await rendered(client, service, system=nothing))[0]["role"] == "user"
    later = [*ASKED["messages"], {"role": "system", "content": "Now be long."}, QUESTION]
    told = await rendered(client, service, messages=later)
    assert told[1] == {"role": "system", "content": "Now be long."}


async def test_a_last_message_of_the_assistant_is_gone_on_with(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    prefilled = [QUESTION, {"role": "assistant", "content": [text("It is "), text("12")]}]
    request = await generate(client, service, messages=prefilled)
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.add_generation_prompt, prompt.continue_final_message) == (False, True)
    assert prompt.messages[-1] == {"role": "assistant", "content": "It is 12"}
    for nothing in ("", []):
        prompt = (
            await generate(client, service, messages=[QUESTION, {"role": "assistant", "content": nothing}])
        ).prompt
        assert isinstance(prompt, ChatPrompt)
        assert (prompt.add_generation_prompt, prompt.continue_final_message) == (True, False)
        assert prompt.messages == [QUESTION]


async def test_counting_makes_the_prompt_and_no_answer(client: httpx2.AsyncClient, service: FakeService) -> None:
    asked = {
        "model": "m",
        "messages": HISTORY,
        "tools": [TOOL],
        "system": "Be brief.",
        "thinking": {"type": "adaptive"},
    }
    told = (await client.post(f"{URL}/count_tokens", json=asked)).json()
    texts = ("Be brief.", QUESTION["content"], "I look.", "12:00", "Error: no such\ntown", "Well?")
    assert told == {"input_tokens": 1 + sum(map(len, texts))}
    assert not service.requests
    assert (await client.post(f"{URL}/count_tokens", json=asked | {"max_tokens": 5})).status_code == 400
