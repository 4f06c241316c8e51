"""/v1/messages: the shapes of answers and events."""

import hashlib
import json
from base64 import b64encode
from typing import Any

import httpx2
import pytest
from tests.server.anthropic_messages import ASKED, TOOLS, URL
from tests.server.conftest import FakeService

from headway.core.output import TextDelta
from headway.core.tools import ToolCallDelta
from headway.errors import NonFiniteLogits, QueueFull


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
