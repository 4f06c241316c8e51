"""Tools and reasoning at OpenAI's door: what reaches the service, and the shapes of answers, whole and streamed."""

from typing import Any

import httpx2
import pytest
from tests.server.conftest import CHAT, FakeService, sse, token

from headway.core.output import TextDelta
from headway.core.request import ChatPrompt
from headway.core.tools import ToolCallDelta, ToolUse
from headway.errors import NonFiniteLogits

URL = "/v1/chat/completions"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a town",
        "parameters": {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}},
        "strict": True,
    },
}
OTHER = {"type": "function", "function": {"name": "get_place", "description": None, "parameters": None}}
TOOLS = CHAT | {"tools": [TOOL, OTHER]}


def delta(choice: int = 0, text: str = "", *, reasoning: str = "", calls: Any = (), **end: Any) -> TextDelta:
    return TextDelta(choice, text, (7,), reasoning=reasoning, tool_calls=tuple(calls), **end)


CALLS = [
    delta(reasoning="Two "),
    delta(reasoning="towns.", text="I look"),
    delta(text=" it up."),
    delta(calls=[ToolCallDelta(0, "call_a", "get_time"), ToolCallDelta(0, arguments='{"zeta": ')]),
    delta(calls=[ToolCallDelta(0, arguments='"Oslo"}'), ToolCallDelta(1, "call_b", "get_place", "{}")]),
    delta(finish_reason="stop"),
]


async def post(client: httpx2.AsyncClient, body: dict[str, Any]) -> Any:
    response = await client.post(URL, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx2.AsyncClient, body: dict[str, Any]) -> list[Any]:
    response = await client.post(URL, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    events = sse(response.text)
    assert events[-1] == "[DONE]"
    return [choice for event in events[:-1] for choice in event["choices"]]


async def test_tools_and_their_use_reach_the_service(client: httpx2.AsyncClient, service: FakeService) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice, use in (
        ({}, ToolUse()),
        ({"tool_choice": "none"}, ToolUse("none")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ToolUse("required", is_parallel=False)),
        ({"tool_choice": named}, ToolUse("named", "get_time")),
        ({"tool_choice": allowed}, ToolUse("required", names=("get_time",))),
    ):
        await post(client, TOOLS | choice)
        request = service.requests[-1]
        assert request.tool_use == use
        prompt = request.prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.tools == [TOOL, {"type": "function", "function": {"name": "get_place"}}]
        assert list(prompt.tools[0]["function"]) == list(TOOL["function"])


@pytest.mark.case("tool-empty-list-08")
async def test_an_empty_list_is_no_tools(client: httpx2.AsyncClient, service: FakeService) -> None:
    for fields in ({"tools": []}, {"tools": [], "tool_choice": "none"}, {"tool_choice": "none"}):
        await post(client, CHAT | fields)
        prompt = service.requests[-1].prompt
        assert isinstance(prompt, ChatPrompt)
        assert prompt.tools is None


async def test_switches_of_reasoning_reach_the_service(client: httpx2.AsyncClient, service: FakeService) -> None:
    await post(client, CHAT | {"reasoning_effort": "none", "thinking_token_budget": 5})
    request = service.requests[-1]
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.template_kwargs == {"enable_thinking": False}
    assert request.sampling.thinking_token_budget == 5


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "time in Oslo and Lima?"},
    {
        "role": "assistant",
        "reasoning_content": "Two towns.",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "get_time", "arguments": '{"zeta": "Oslo"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "get_time", "arguments": {"zeta": "Lima"}}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "07:00"}]},
    {"role": "tool", "tool_call_id": "call_a", "content": "12:00"},
]


@pytest.mark.case("AG042", "tool-args-object-09")
async def test_a_history_is_told_in_the_order_of_its_calls(client: httpx2.AsyncClient, service: FakeService) -> None:
    await post(client, TOOLS | {"messages": HISTORY})
    prompt = service.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1:] == [
        HISTORY[1] | {"content": "", "reasoning": "Two towns."},
        {"role": "tool", "tool_call_id": "call_a", "content": "12:00", "name": "get_time"},
        {"role": "tool", "tool_call_id": "call_b", "content": "07:00", "name": "get_time"},
    ]


@pytest.mark.case("AG050")
async def test_a_result_that_is_no_text_is_refused_by_its_place(client: httpx2.AsyncClient) -> None:
    for content in ({"time": "07:00"}, 7, True):
        messages = [*HISTORY[:2], HISTORY[2] | {"content": content}, HISTORY[3]]
        response = await client.post(URL, json=TOOLS | {"messages": messages})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "messages[2].content"


async def test_results_that_do_not_pair_are_refused_by_place_and_id(client: httpx2.AsyncClient) -> None:
    for messages, param, words in (
        (HISTORY[:3], "messages[1].tool_calls", "call_a"),
        ([*HISTORY, HISTORY[3]], "messages[4].tool_call_id", "call_a"),
        ([HISTORY[0], HISTORY[2]], "messages[1].tool_call_id", "call_b"),
    ):
        error = (await client.post(URL, json=TOOLS | {"messages": messages})).json()["error"]
        assert error["param"] == param
        assert words in error["message"]


async def test_calls_without_results_may_be_counted(client: httpx2.AsyncClient) -> None:
    asked = {"messages": HISTORY[:2], "tools": [TOOL]}
    assert (await client.post("/tokenize", json=asked)).status_code == 400
    assert (await client.post("/tokenize", json=asked | {"add_generation_prompt": False})).status_code == 200


async def test_a_whole_answer_has_reasoning_text_and_calls(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: CALLS
    choice = (await post(client, TOOLS))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "I look it up.",
        "refusal": None,
        "reasoning_content": "Two towns.",
        "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "get_time", "arguments": '{"zeta": "Oslo"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "get_place", "arguments": "{}"}},
        ],
    }


async def test_a_stream_tells_one_thing_a_chunk_and_a_calls_name_first(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: CALLS
    choices = await stream(client, TOOLS)
    first = {"type": "function"}
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Two "},
        {"reasoning_content": "towns."},
        {"content": "I look"},
        {"content": " it up."},
        {"tool_calls": [first | {"index": 0, "id": "call_a", "function": {"name": "get_time", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"zeta": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]},
        {"tool_calls": [first | {"index": 1, "id": "call_b", "function": {"name": "get_place", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 10 + ["tool_calls"]


@pytest.mark.parametrize(
    ("fields", "end", "reason"),
    [
        ({}, "stop", "tool_calls"),
        ({"tool_choice": "required"}, "stop", "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "stop", "stop"),
        ({}, "length", "length"),
        ({}, "abort", "abort"),
    ],
)
async def test_the_finish_reason_is_openais(
    client: httpx2.AsyncClient, service: FakeService, fields: dict[str, Any], end: str, reason: str
) -> None:
    service.script = lambda _: [*CALLS[:-1], delta(finish_reason=end)]
    assert (await post(client, TOOLS | fields))["choices"][0]["finish_reason"] == reason
    assert (await stream(client, TOOLS | fields))[-1]["finish_reason"] == reason


async def test_content_is_null_where_there_is_none(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: [delta(calls=[ToolCallDelta(0, "call_a", "get_time", "{}")], finish_reason="stop")]
    assert (await post(client, TOOLS))["choices"][0]["message"]["content"] is None
    service.script = lambda _: [delta(reasoning="cut", finish_reason="length")]
    message = (await post(client, CHAT))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "cut"}
    service.script = lambda _: [delta(finish_reason="length")]
    message = (await post(client, CHAT))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None}


async def test_reasoning_that_is_not_wanted_is_not_told(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: [token(0, "", finish_reason=None), *CALLS]
    body = TOOLS | {"include_reasoning": False, "logprobs": True}
    answer = await post(client, body)
    assert "reasoning_content" not in answer["choices"][0]["message"]
    choices = await stream(client, body)
    assert not any("reasoning_content" in choice["delta"] for choice in choices)
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "I look it up."


async def test_each_of_n_choices_has_its_own_calls(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.script = lambda _: [
        delta(1, calls=[ToolCallDelta(0, "call_b", "get_place", "{}")]),
        delta(0, "no"),
        delta(0, finish_reason="stop"),
        delta(1, finish_reason="stop"),
    ]
    answer = await post(client, TOOLS | {"n": 2})
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "tool_calls"]
    assert [len(choice["message"].get("tool_calls", [])) for choice in answer["choices"]] == [0, 1]
    choices = await stream(client, TOOLS | {"n": 2})
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {0: "stop", 1: "tool_calls"}
    assert {choice["index"] for choice in choices if "tool_calls" in choice["delta"]} == {1}


@pytest.mark.case("logprobs-tools-07")
async def test_logprobs_are_of_every_token_once(client: httpx2.AsyncClient, service: FakeService) -> None:
    one = token(0, "x").logprobs
    said = [TextDelta(d.choice, d.text, (7,), one, d.finish_reason, None, d.reasoning, d.tool_calls) for d in CALLS]
    service.script = lambda _: said
    body = TOOLS | {"logprobs": True, "top_logprobs": 2, "tool_choice": "required"}
    answer = await post(client, body)
    whole = answer["choices"][0]["logprobs"]["content"]
    assert len(whole) == answer["usage"]["completion_tokens"] == len(CALLS)
    choices = await stream(client, body)
    told = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert told == whole


async def test_an_error_in_the_middle_of_a_call_is_told_in_the_stream(
    client: httpx2.AsyncClient, service: FakeService
) -> None:
    service.script = lambda _: [*CALLS[:4], NonFiniteLogits("the model computed NaN")]
    events = sse((await client.post(URL, json=TOOLS | {"stream": True})).text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["message"] == "the model computed NaN"


async def test_an_assistant_and_a_tool_may_say_nothing(client: httpx2.AsyncClient, service: FakeService) -> None:
    question = {"role": "user", "content": "time?"}
    call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    for nothing in ({}, {"content": None}, {"content": ""}, {"content": []}):
        called = {"role": "assistant", "tool_calls": [call]} | nothing
        await post(client, TOOLS | {"messages": [question, called, {"role": "tool", "tool_call_id": "a"} | nothing]})
    for request in service.requests:
        assert isinstance(request.prompt, ChatPrompt)
        assert [message["content"] for message in request.prompt.messages] == ["time?", "", ""]
    refused = await client.post(URL, json=CHAT | {"messages": [{"role": "user", "content": []}]})
    assert "messages[0].content is an empty list" in refused.json()["error"]["message"]
