"""/v1/messages: what reaches the service, and the shapes of answers, events and errors."""

import hashlib
import json
from base64 import b64encode
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.server.conftest import FakeService, client_of

from headway.config import ServerConfig
from headway.core.output import TextDelta
from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.tools import ToolCallDelta, ToolUse
from headway.errors import (
    ContextLengthExceeded,
    HeadwayError,
    InvalidRequest,
    ModelNotReady,
    NonFiniteLogits,
    QueueFull,
    WorkerDied,
)
from headway.server.app import make_app

URL = "/v1/messages"
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}}
TOOL = {"name": "get_time", "description": "The time in a town", "input_schema": SCHEMA, "strict": True}
TOOLS = ASKED | {"tools": [TOOL, {"name": "x" * 128, "input_schema": {"type": "object"}, "type": "custom"}]}


async def generate(client: httpx2.AsyncClient, service: FakeService, **fields: Any) -> GenerateRequest:
    response = await client.post(URL, json=ASKED | fields)
    assert response.status_code == 200, response.text
    return service.requests[-1]


async def rendered(client: httpx2.AsyncClient, service: FakeService, **fields: Any) -> list[Any]:
    prompt = (await generate(client, service, **fields)).prompt
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


async def refusal(client: httpx2.AsyncClient, body: Any, status: int = 400, url: str = URL) -> str:
    response = await client.post(url, json=body)
    assert response.status_code == status, response.text
    told = response.json()
    assert set(told) == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(told["error"]) == {"type", "message"}
    return f"{told['error']['type']}: {told['error']['message']}"


async def stream(client: httpx2.AsyncClient, **fields: Any) -> list[Any]:
    """The events' bodies; each event has the name of its body's type."""
    response = await client.post(URL, json=ASKED | fields | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    bodies = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        bodies.append(body)
    return bodies


def joined(events: list[Any]) -> list[dict[str, Any]]:
    """The blocks of a stream as a whole answer would have them."""
    blocks: list[dict[str, Any]] = []
    partial = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            partial = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            ((name, piece),) = [item for item in event["delta"].items() if item[0] != "type"]
            if name == "partial_json":
                partial += piece
            else:
                blocks[-1][name] += piece
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(blocks) - 1
            if partial:
                blocks[-1]["input"] = json.loads(partial)
    return blocks


# What reaches the service


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
    assert request.prompt.template_kwargs == {"enable_thinking": is_on}
    assert request.sampling.thinking_token_budget == budget


async def test_tools_and_their_use_reach_the_service(client: httpx2.AsyncClient, service: FakeService) -> None:
    for choice, use in (
        (None, ToolUse()),
        ({"type": "auto"}, ToolUse()),
        ({"type": "none"}, ToolUse("none")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolUse("required", is_parallel=False)),
        ({"type": "tool", "name": "get_time"}, ToolUse("named", "get_time")),
    ):
        request = await generate(client, service, **TOOLS | {"tool_choice": choice})
        assert request.tool_use == use
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


def use(call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "get_time", "input": given}


def result(call_id: str, content: Any = "12:00", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content} | more


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | more


QUESTION = {"role": "user", "content": "time in Oslo and Lima?"}
CALLS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Two towns.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look.", citations=None),
        use("toolu_a", zeta="Oslo") | {"caller": {"type": "direct"}},
        use("toolu_b", zeta="Lima", alpha=None),
    ],
}
RESULTS = {
    "role": "user",
    "content": [
        result("toolu_b", [text("no such"), text("town")], is_error=True, cache_control={"type": "ephemeral"}),
        result("toolu_a"),
        text("Well?"),
    ],
}
HISTORY = [QUESTION, CALLS, RESULTS]


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


# Answers

SAID = [
    TextDelta(0, "", (7,), reasoning="Two "),
    TextDelta(0, "I look", (7,), reasoning="towns."),
    TextDelta(0, " it up.", (7,)),
    TextDelta(
        0, "", (7,), tool_calls=(ToolCallDelta(0, "call_a", "get_time"), ToolCallDelta(0, arguments='{"zeta": '))
    ),
    TextDelta(
        0, "", (7,), tool_calls=(ToolCallDelta(0, arguments='"Oslo"}'), ToolCallDelta(1, "call_b", "get_place", "{}"))
    ),
    TextDelta(0, "Wait.", (7,)),
    TextDelta(0, " Done.", (7,), tool_calls=(ToolCallDelta(2, "call_c", "get_time", "{}"),)),
    TextDelta(0, "", (7,), finish_reason="stop"),
]
SIGNATURE = b64encode(hashlib.sha256(b"Two towns.").digest()).decode()
BLOCKS = [
    {"type": "thinking", "thinking": "Two towns.", "signature": SIGNATURE},
    {"type": "text", "text": "I look it up."},
    {"type": "tool_use", "id": "call_a", "name": "get_time", "input": {"zeta": "Oslo"}},
    {"type": "tool_use", "id": "call_b", "name": "get_place", "input": {}},
    {"type": "text", "text": "Wait. Done."},
    {"type": "tool_use", "id": "call_c", "name": "get_time", "input": {}},
]


async def test_an_answer_has_its_blocks_in_the_order_they_came_whole_and_streamed(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: SAID
    service.num_cached_tokens = 1
    # The prompt is three tokens, of which one was in the cache.
    usage = {
        "input_tokens": 2,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "output_tokens": 8,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    whole = (await client.post(URL, json=TOOLS)).json()
    assert whole.pop("id").startswith("msg_")
    assert whole == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": BLOCKS,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": usage,
    }
    events = await stream(client, **TOOLS)
    assert joined(events) == BLOCKS
    start = events[0]["message"]
    assert start.pop("id").startswith("msg_")
    assert start == whole | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 0}}
    assert events[1] == {"type": "ping"}
    assert events[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": usage,
    }
    assert events[-1] == {"type": "message_stop"}
    signed = [event for event in events if event.get("delta", {}).get("type") == "signature_delta"]
    assert [(event["index"], event["delta"]["signature"]) for event in signed] == [(0, SIGNATURE)]


async def test_arguments_are_told_as_the_model_wrote_them(client: httpx2.AsyncClient, service: FakeService) -> None:
    written = '{"big": 123456789012345678901234567890, "small": 1.10, "mark": "\\u00e9é"}'
    service.script = lambda _: [
        TextDelta(0, "", (7,), tool_calls=(ToolCallDelta(0, "a", "f", written),), finish_reason="stop")
    ]
    assert f'"input":{written}' in (await client.post(URL, json=TOOLS)).text
    (delta,) = [event["delta"] for event in await stream(client, **TOOLS) if event["type"] == "content_block_delta"]
    assert delta == {"type": "input_json_delta", "partial_json": written}


async def test_omitted_thinking_has_a_signature_alone(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: SAID
    asked = {"thinking": {"type": "adaptive", "display": "omitted"}}
    block = {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assert (await client.post(URL, json=TOOLS | asked)).json()["content"] == [block, *BLOCKS[1:]]
    assert joined(await stream(client, **TOOLS | asked)) == [block, *BLOCKS[1:]]


@pytest.mark.parametrize(
    ("deltas", "max_tokens", "stop"),
    [
        ([TextDelta(0, "a", (7,), finish_reason="stop", stop_reason=2)], 9, ("end_turn", None)),
        ([TextDelta(0, "", (), finish_reason="stop")], 9, ("end_turn", None)),
        ([TextDelta(0, "a", (7,), finish_reason="stop", stop_reason="END")], 9, ("stop_sequence", "END")),
        ([*SAID[:-1], TextDelta(0, "", (), finish_reason="stop", stop_reason="X")], 9, ("stop_sequence", "X")),
        ([TextDelta(0, "a", (7,)), TextDelta(0, "b", (7,), finish_reason="length")], 2, ("max_tokens", None)),
        ([*SAID[:-1], TextDelta(0, "", (7,), finish_reason="length")], 8, ("max_tokens", None)),
        ([TextDelta(0, "a", (7,), finish_reason="length")], 2, ("model_context_window_exceeded", None)),
        ([TextDelta(0, "a", (7,), finish_reason="abort", stop_reason="timeout")], 9, ("max_tokens", None)),
    ],
)
async def test_why_an_answer_ended(
    client: httpx2.AsyncClient,
    service: FakeService,
    deltas: list[TextDelta],
    max_tokens: int,
    stop: tuple[str, str | None],
) -> None:
    service.script = lambda _: deltas
    whole = (await client.post(URL, json=ASKED | {"max_tokens": max_tokens})).json()
    events = await stream(client, max_tokens=max_tokens)
    assert (whole["stop_reason"], whole["stop_sequence"]) == stop
    assert (events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]) == stop
    assert joined(events) == whole["content"]
    assert events[-2]["usage"] == whole["usage"]


async def test_a_call_that_was_cut_is_no_block_and_its_pieces_were_streamed(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: [*SAID[:4], TextDelta(0, "", (7,), finish_reason="length")]
    whole = (await client.post(URL, json=TOOLS | {"max_tokens": 5})).json()
    assert (whole["content"], whole["stop_reason"]) == (BLOCKS[:2], "max_tokens")
    events = await stream(client, **TOOLS | {"max_tokens": 5})
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[-1] == {"type": "input_json_delta", "partial_json": '{"zeta": '}
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("written", ["", "[1]", '{"a": NaN}', '{"a": ' * 5000, '{"a": 1} {', '{"a": ]}'])
async def test_what_is_no_object_of_json_is_no_block(
    client: httpx2.AsyncClient, service: FakeService, written: str
) -> None:
    calls = (ToolCallDelta(0, "a", "f", written), ToolCallDelta(1, "b", "g", '{"a": 1}'))
    service.script = lambda _: [TextDelta(0, "", (7,), tool_calls=calls, finish_reason="stop")]
    told = (await client.post(URL, json=TOOLS)).json()
    assert [(block["id"], block["input"]) for block in told["content"]] == [("b", {"a": 1})]


async def test_a_stream_that_fails_ends_with_an_error(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: [*SAID[:4], NonFiniteLogits("NaN at layer 3")]
    events = await stream(client, **TOOLS)
    assert [event["type"] for event in events].count("message_start") == 1
    request_id = events[-1].pop("request_id")
    assert request_id.startswith("req-")
    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "NaN at layer 3"}}
    service.script = lambda _: [QueueFull("lost its place")]
    (only,) = await stream(client)
    assert only["error"] == {"type": "overloaded_error", "message": "lost its place"}
    assert not service.open


# Counting


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


# Refusals

WITHOUT = {name: value for name, value in ASKED.items() if name != "max_tokens"}


def asking(*messages: Any, **fields: Any) -> dict[str, Any]:
    return ASKED | {"messages": list(messages)} | fields


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (WITHOUT, "max_tokens is missing"),
        (ASKED | {"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        (ASKED | {"max_tokens": True}, "max_tokens is true; it must be an integer"),
        (ASKED | {"messages": []}, "messages is an empty list"),
        (ASKED | {"foo": 1}, "foo is no field"),
        (ASKED | {"container": "x"}, "container is not supported"),
        (ASKED | {"mcp_servers": [{}]}, "mcp_servers is not supported"),
        (ASKED | {"stop_sequences": ["x"] * 17}, "stop_sequences has 17 strings, at most 16"),
        (ASKED | {"stop_sequences": "x"}, "stop_sequences is a string; it must be a list"),
        (ASKED | {"temperature": -1}, "temperature is -1.0; it must be at least 0.0"),
        (ASKED | {"metadata": {"user_id": "x" * 257}}, "metadata.user_id has 257 characters; it must have at most 256"),
        (ASKED | {"metadata": {"name": "x"}}, "metadata.name is no field"),
        (ASKED | {"thinking": {"type": "between_tools"}}, "thinking.type"),
        (ASKED | {"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        (ASKED | {"thinking": {"type": "adaptive", "budget_tokens": 5}}, "only for thinking of type enabled"),
        (
            ASKED | {"thinking": {"type": "enabled", "budget_tokens": 50}},
            "thinking.budget_tokens is 50; it must be at least 1 and below max_tokens, which is 50",
        ),
        (ASKED | {"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        (ASKED | {"context_management": {"edits": [{"type": "clear_tool_uses_1"}]}}, "context_management.edits[0]"),
        (asking(said("user", {"type": "image", "source": {}})), "messages[0].content[0].type is image"),
        (asking(said("user", text("a"), {"type": "document"})), "messages[0].content[1].type is document"),
        (asking(said("user", use("a"))), "messages[0].content[0].type is 'tool_use'; blocks of a message of the role"),
        (asking(said("user", {"type": "text"})), "messages[0].content[0].text is null; it must be a string"),
        (asking(said("user", text("a", foo=1))), "messages[0].content[0].foo is no field of a text block"),
        (asking(said("user", "a")), "messages[0].content[0] is a string; it must be an object with a type"),
        (asking(said("user")), "messages[0].content is an empty list"),
        (asking({"role": "user", "content": 7}), "messages[0].content is 7"),
        (asking({"role": "user"}), "messages[0].content is missing"),
        (asking({"role": "tool", "content": "x"}), "messages[0].role must be user or assistant"),
        (asking({"role": "assistant", "content": ""}), "messages has only an empty message"),
        (asking(QUESTION, said("assistant", CALLS["content"][0])), "messages ends with thinking"),  # type: ignore[index]
        (ASKED | {"system": [{"type": "image"}]}, "system[0].type is image"),
        (ASKED | {"system": 7}, "system is 7; it must be text or a list"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_place(client: httpx2.AsyncClient, body: Any, words: str) -> None:
    told = await refusal(client, body)
    assert told.startswith(f"invalid_request_error: {words}") or words in told


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([QUESTION, CALLS], ["messages[1]", "toolu_a", "toolu_b", "next message"]),
        ([QUESTION, CALLS, said("user", result("toolu_a"))], ["messages[1]", "'toolu_b'"]),
        ([QUESTION, CALLS, QUESTION], ["messages[1]", "toolu_a"]),
        ([QUESTION, CALLS, said("system", text("x"))], ["messages[1]", "toolu_a"]),
        (
            [*HISTORY, said("assistant", text("x")), said("user", result("toolu_a"))],
            ["messages[4].content[0]", "toolu_a"],
        ),
        ([said("user", result("x"))], ["messages[0].content[0].tool_use_id", "'x'", "just before"]),
        (
            [QUESTION, CALLS, said("user", result("toolu_a"), result("toolu_b"), result("toolu_a"))],
            ["messages[2].content[2].tool_use_id", "toolu_a", "another"],
        ),
        (
            [QUESTION, CALLS, said("user", text("x"), result("toolu_a"), result("toolu_b"))],
            ["messages[2].content[1]", "results come first"],
        ),
        ([QUESTION, said("assistant", use("a"), use("a"))], ["messages[1].content[1].id", "'a'"]),
        ([QUESTION, said("assistant", use("a") | {"input": "{}"})], ["messages[1].content[0].input is a string"]),
        (
            [QUESTION, CALLS, said("user", result("toolu_a", [{"type": "image"}]))],
            ["messages[2].content[0].content[0].type is image"],
        ),
        ([QUESTION, CALLS, said("user", result("toolu_a", is_error=1))], ["messages[2].content[0].is_error is 1"]),
    ],
)
async def test_results_that_do_not_pair_are_refused_by_place_and_id(
    client: httpx2.AsyncClient, messages: list[Any], words: list[str]
) -> None:
    for url, body in ((URL, asking(*messages)), (f"{URL}/count_tokens", {"model": "m", "messages": messages})):
        told = await refusal(client, body, url=url)
        assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is 'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
        ({"tools": [TOOL | {"name": "no spaces"}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [TOOL | {"name": "x" * 129}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name is 'get_time', as an earlier tool's"),
        ({"tools": [TOOL | {"input_schema": 7}]}, "tools[0].input_schema is 7"),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, 'tools[0].input_schema.type must be "object"'),
        ({"tools": [TOOL | {"foo": 1}]}, "tools[0].foo is no field of a tool"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading is not supported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is only for requests with tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
            "tool_choice names 'other', and tools has",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any", "name": "get_time"}},
            "tool_choice.name is only for type tool",
        ),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice is a string; it must be an object"),
    ],
)
async def test_tools_that_cannot_be_used_are_refused_by_their_place(
    client: httpx2.AsyncClient, fields: Any, words: str
) -> None:
    assert (await refusal(client, ASKED | fields)).startswith(f"invalid_request_error: {words}")


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InvalidRequest("stop has a fault", param="stop"), 400, "invalid_request_error: stop_sequences has a fault"),
        (
            ContextLengthExceeded("the prompt has 9 tokens, at most 8", param="prompt"),
            400,
            "invalid_request_error: prompt is too long: the prompt has 9 tokens, at most 8",
        ),
        (QueueFull("8 wait", retry_after_s=3.0), 529, "overloaded_error: 8 wait"),
        (ModelNotReady("it loads"), 503, "api_error: it loads"),
        (WorkerDied("Traceback secret"), 503, "api_error: the model's process ended"),
        (NonFiniteLogits("NaN"), 500, "api_error: NaN"),
        (RuntimeError("secret"), 500, "api_error: an internal error"),
    ],
)
async def test_errors_of_the_house_have_anthropics_status_and_type(
    app: FastAPI, service: FakeService, error: HeadwayError | RuntimeError, status: int, told: str
) -> None:
    service.refusal = error
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for body in (ASKED, ASKED | {"stream": True}):
            assert (await refusal(client, body, status)).startswith(told)
        if status in (503, 529):
            response = await client.post(URL, json=ASKED)
            assert response.headers["retry-after"] == ("3" if status == 529 else "1")


@pytest.mark.case("err-shape-07")
async def test_errors_before_the_route_have_anthropics_shape(service: FakeService) -> None:
    app = make_app(service, ServerConfig(api_keys=("key",), max_body_bytes=1000))
    async with client_of(app) as client:
        assert (await refusal(client, ASKED, 401)).startswith("authentication_error: no valid API key")
        client.headers["x-api-key"] = "key"
        assert (await client.post(URL, json=ASKED)).status_code == 200
        assert (await refusal(client, ASKED | {"model": "none"}, 404)).startswith("not_found_error: ")
        assert (await refusal(client, ASKED | {"system": "x" * 1000}, 413)).startswith("request_too_large: ")
        assert (await refusal(client, {}, 404, f"{URL}/batches")).startswith("not_found_error: there is no such route")
        response = await client.get(URL)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error"]["type"] == "invalid_request_error"
        response = await client.post(URL, content=b"{")
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "no valid JSON" in response.json()["error"]["message"]
    async with client_of(make_app(service, ServerConfig(allowed_hosts=("localhost",)))) as client:
        assert (await refusal(client, ASKED, 403)).startswith("permission_error: ")


async def test_what_is_beside_anthropics_path_keeps_openais_shape(client: httpx2.AsyncClient) -> None:
    for path in ("/v1/messagesx", "/v1/message", "/messages"):
        response = await client.post(path, json=ASKED)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert "request-id" not in response.headers
