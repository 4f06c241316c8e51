"""/v1/responses through the official client, over a real socket, against the real service over scripted models."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseReasoningItem
from tests.server.conftest import serving, until

import headway_wire as wire
from headway.server.run import HttpServer
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

KEY = "key-1"


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SCRIPT = Script(
    reply=say("Hello!", num_cached_tokens=2),
    replies={
        "12:00": say("Noon in Oslo."),
        "Oslo": say("I look.\n" + call("get_time", '{"town": "Oslo"}') + "\n" + call("get_place", "{}")),
        "wave": Reply(tokens=[b"\xf0\x9f", b"\x91\x8b", b" h", b"i"]),
        "pair": say('{"left": 1, "right": "two"}'),
        "long": Reply(tokens=[b"x"], is_endless=True),
        "fail": say("abcdef", error_at=3),
        "full": Reply(refusal=wire.Error(kind="QueueFull", message="2 wait, at most 2")),
        "gate": say("abc", gates={1: "go"}),
        "why": say("Because.</think>\n\nSo."),
    },
    max_model_len=900,
    reasoning_parser="qwen3",
    is_enforced=True,
)
TOOLS: Any = [
    {"type": "function", "name": "get_time", "strict": None,
     "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}},
    {"type": "function", "name": "get_place", "strict": None, "parameters": {"type": "object"}},
]  # fmt: skip


class Pair(pydantic.BaseModel):
    left: int
    right: str


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(SCRIPT)


@pytest.fixture
async def server(service: ScriptedService) -> AsyncIterator[HttpServer]:
    async with serving(service, KEY) as server:
        yield server


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def checked(response: Response) -> Response:
    """As the client's own model has it, which it does not check by itself."""
    Response.model_validate(response.to_dict())
    return response


async def test_a_text_is_answered_whole_and_streamed_alike(client: AsyncOpenAI) -> None:
    whole = checked(await client.responses.create(model="scripted", input="wave", instructions="Be brief."))
    assert (whole.output_text, whole.status) == ("👋 hi", "completed")
    assert whole.usage is not None
    # <|system|>Be brief.<|end|><|user|>wave<|end|><|assistant|> is 18 tokens; four and the end token are 5.
    assert (whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens) == (18, 5, 23)
    deltas = []
    async with client.responses.stream(model="scripted", input="wave", instructions="Be brief.") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
        last = checked(await stream.get_final_response())
    assert ("".join(deltas), last.output_text) == ("👋 hi", "👋 hi")
    assert last.usage == whole.usage
    cached = await client.responses.create(model="scripted", input="hello")
    assert cached.usage is not None
    assert cached.usage.input_tokens_details.cached_tokens == 2


async def test_tools_in_two_turns_by_the_response_before_and_by_its_items(client: AsyncOpenAI) -> None:
    first = checked(await client.responses.create(model="scripted", input="Oslo", tools=TOOLS))
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(each.name, json.loads(each.arguments)) for each in calls] == [
        ("get_time", {"town": "Oslo"}),
        ("get_place", {}),
    ]
    assert first.output[0].type == "message"
    assert len({each.call_id for each in calls}) == 2
    results: Any = [
        {"type": "function_call_output", "call_id": each.call_id, "output": "12:00" if i == 0 else "error: no map"}
        for i, each in enumerate(calls)
    ]
    by_id = await client.responses.create(model="scripted", input=results, tools=TOOLS, previous_response_id=first.id)
    items: Any = [{"role": "user", "content": "Oslo"}, *first.output, *results]
    by_items = await client.responses.create(model="scripted", input=items, tools=TOOLS)
    assert by_id.output_text == by_items.output_text == "Noon in Oslo."
    assert by_id.usage is not None
    assert by_items.usage is not None
    assert by_id.usage.input_tokens == by_items.usage.input_tokens


async def test_calls_are_streamed_with_their_names_first(client: AsyncOpenAI) -> None:
    pieces: dict[int, str] = {}
    names: dict[int, str] = {}
    async with client.responses.stream(model="scripted", input="Oslo", tools=TOOLS) as stream:
        async for event in stream:
            if event.type == "response.output_item.added" and isinstance(event.item, ResponseFunctionToolCall):
                names[event.output_index] = event.item.name
            if event.type == "response.function_call_arguments.delta":
                assert event.output_index in names
                pieces[event.output_index] = pieces.get(event.output_index, "") + event.delta
        last = checked(await stream.get_final_response())
    calls = {i: item for i, item in enumerate(last.output) if isinstance(item, ResponseFunctionToolCall)}
    assert {i: item.arguments for i, item in calls.items()} == pieces
    assert {i: item.name for i, item in calls.items()} == names == {1: "get_time", 2: "get_place"}


async def test_a_structured_answer_is_parsed(client: AsyncOpenAI) -> None:
    answer = await client.responses.parse(model="scripted", input="pair", text_format=Pair)
    assert answer.output_parsed == Pair(left=1, right="two")
    async with client.responses.stream(model="scripted", input="pair", text_format=Pair) as stream:
        parsed = (await stream.get_final_response()).output_parsed
    assert parsed == Pair(left=1, right="two")


async def test_reasoning_is_an_item_of_its_own_and_goes_back(client: AsyncOpenAI) -> None:
    thinking: Any = {"chat_template_kwargs": {"enable_thinking": True}}
    first = checked(await client.responses.create(model="scripted", input="why", extra_body=thinking))
    reasoning = first.output[0]
    assert isinstance(reasoning, ResponseReasoningItem)
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Because."
    assert first.output_text == "So."
    assert first.usage is not None
    # A token is a byte: eight of them are the reasoning, and eight end it.
    assert first.usage.output_tokens_details.reasoning_tokens == 8 + 8
    deltas = ""
    async with client.responses.stream(model="scripted", input="why", extra_body=thinking) as stream:
        async for event in stream:
            deltas += event.delta if event.type == "response.reasoning_text.delta" else ""
        last = checked(await stream.get_final_response())
    assert (deltas, last.output_text) == ("Because.", "So.")
    items: Any = [{"role": "user", "content": "why"}, *first.output, {"role": "user", "content": "hello"}]
    by_items = await client.responses.create(model="scripted", input=items)
    by_id = await client.responses.create(model="scripted", input="hello", previous_response_id=first.id)
    assert by_items.usage is not None
    assert by_id.usage is not None
    assert by_items.usage.input_tokens == by_id.usage.input_tokens


async def test_a_cut_response_is_incomplete(client: AsyncOpenAI) -> None:
    cut = checked(await client.responses.create(model="scripted", input="long", max_output_tokens=16))
    assert (cut.status, cut.output_text) == ("incomplete", "x" * 16)
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    events = await client.responses.create(model="scripted", input="long", max_output_tokens=16, stream=True)
    last = [event async for event in events][-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == "x" * 16


async def test_kept_responses_are_read_listed_and_forgotten(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model="scripted", input="hello", metadata={"a": "b"})
    assert await client.responses.retrieve(answer.id) == answer
    listed = await client.responses.input_items.list(answer.id)
    [item] = listed.data
    assert item.type == "message"
    assert item.content[0].type == "input_text"
    assert item.content[0].text == "hello"
    await client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="scripted", input="and?", previous_response_id=answer.id)
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(answer.id)


async def test_the_clients_own_error_classes_come_out(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="other", input="hello")
    with pytest.raises(openai.InternalServerError) as full:
        await client.responses.create(model="scripted", input="full")
    assert (full.value.status_code, full.value.code) == (503, "queue_full")
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").responses.create(model="scripted", input="hello")
    with pytest.raises(openai.BadRequestError) as long:
        await client.responses.create(model="scripted", input="x" * 1000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="scripted", input="hello", max_output_tokens=5000)
    assert caught.value.param == "max_output_tokens"


async def test_an_error_in_mid_stream_is_told_as_an_event(client: AsyncOpenAI, service: ScriptedService) -> None:
    stream = await client.responses.create(model="scripted", input="fail", stream=True)
    events = [event async for event in stream]
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.code == "internal_error"
    assert failed.type == "response.failed"
    assert (failed.response.status, failed.response.output_text) == ("failed", "abc")
    checked(failed.response)
    with pytest.raises(openai.InternalServerError):
        await client.responses.create(model="scripted", input="fail")
    await service.until_idle()
    assert service.predictor().aborts == []


async def test_whoever_leaves_is_not_computed_on(client: AsyncOpenAI, service: ScriptedService) -> None:
    stream = await client.responses.create(model="scripted", input="long", stream=True)
    await anext(aiter(stream))
    await stream.close()
    await service.until_idle()
    assert len(service.predictor().aborts) == 1
    waiting = asyncio.ensure_future(client.responses.create(model="scripted", input="gate"))
    await until(lambda: service.stats()["models"]["scripted"]["client_open_requests"] == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await service.until_idle()
    assert len(service.predictor().aborts) == 2


async def test_many_conversations_at_once_keep_their_own(client: AsyncOpenAI) -> None:
    async def talk(place: int) -> None:
        word = ("hello", "wave", "Oslo")[place % 3]
        answer = None
        for turn in range(3):
            answer = await client.responses.create(
                model="scripted", input=f"{word} {place} {turn}",
                previous_response_id=answer.id if answer is not None else openai.omit,
            )  # fmt: skip
        assert answer is not None
        listed = await client.responses.input_items.list(answer.id)
        assert f"{word} {place} 2" in str(listed.data[0])

    await asyncio.gather(*(talk(place) for place in range(12)))
