"""Anthropic's official client, over a real socket, against scripted models. Texts are the scripts'; whole and streamed
are the same."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import AsyncAnthropic
from tests.server.conftest import listening, serving, until

import headway_wire as wire
from headway.config import ServerConfig
from headway.server.app import make_app
from headway.server.run import HttpServer
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

KEY = "key-1"


def call(town: str) -> str:
    return f'<tool_call>\n{{"name": "get_time", "arguments": {{"town": "{town}"}}}}\n</tool_call>'


BOTH = f"I look.\n{call('Oslo')}\n{call('Nowhere')}"
SCRIPT = Script(
    reply=say("Hello!", num_cached_tokens=2),
    replies={
        # The first of these that is in a prompt is played: this one asks for the results of calls.
        "Error: no such town": say("It is noon in Oslo."),
        "towns": say(BOTH),
        "cut": say(BOTH[: BOTH.index("Nowhere")], is_endless=True),
        "thanks": say("Welcome."),
        "why": say("Let me see.\n</think>\n\nBecause."),
        "stop": Reply(tokens=[b"a", b",b", b",cd", b"efg"]),
        "wave": Reply(tokens=[b"\xf0\x9f", b"\x91\x8b", b" h", b"i"]),
        "answer": say('{"town": "Oslo", "hour": 12}'),
        "long": Reply(tokens=[b"x"], is_endless=True),
        "fail": say("abcdef", error_at=3),
        "full": Reply(refusal=wire.Error(kind="QueueFull", message="2 wait, at most 2")),
        "gate": say("abc", gates={1: "go"}),
    },
    max_model_len=700,
    reasoning_parser="qwen3",
    is_enforced=True,
)
TOOL: Any = {
    "name": "get_time",
    "description": "The time in a town",
    "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
}
NO_THINKING = len("<think>\n\n</think>\n\n")
"""What the template adds where nobody asks for thinking."""


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(SCRIPT)


@pytest.fixture
async def server(service: ScriptedService) -> AsyncIterator[HttpServer]:
    async with serving(service, KEY) as server:
        yield server


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def asked(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "max_tokens": 200, "messages": [{"role": "user", "content": content}]} | fields


async def both(client: AsyncAnthropic, **body: Any) -> Any:
    """The message, which is the same streamed but for ids."""
    whole = await client.messages.create(**body)
    async with client.messages.stream(**body) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in streamed.content] == [block.type for block in whole.content]
    for one, other in zip(whole.content, streamed.content, strict=True):
        dumps = [block.model_dump(exclude={"id", "parsed_output"}) for block in (one, other)]
        assert dumps[0] == dumps[1]
    assert streamed.usage == whole.usage
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert whole.id != streamed.id
    return whole


async def test_a_message_is_answered(client: AsyncAnthropic) -> None:
    message = await both(client, **asked("hello"))
    assert [block.text for block in message.content] == ["Hello!"]
    assert (message.stop_reason, message.stop_sequence, message.role, message.model) == (
        "end_turn", None, "assistant", "scripted",
    )  # fmt: skip
    usage = message.usage
    # <|user|>hello<|end|><|assistant|> is 8 tokens, of which 2 were cached; six bytes and the end token are 7.
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (6 + NO_THINKING, 2)
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 7)
    [wave] = (await both(client, **asked("wave"))).content
    assert wave.text == "👋 hi"


async def test_a_count_is_what_the_message_takes(client: AsyncAnthropic) -> None:
    for fields in (
        {},
        {"system": "Be brief.", "tools": [TOOL]},
        {"thinking": {"type": "adaptive"}},
        {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hel"}]},
    ):
        body = asked("hello") | fields
        usage = (await client.messages.create(**body)).usage
        del body["max_tokens"]
        count = await client.messages.count_tokens(**body)
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_two_calls_of_which_one_fails(client: AsyncAnthropic) -> None:
    body = asked("time in two towns?", tools=[TOOL])
    message = await both(client, **body)
    assert message.stop_reason == "tool_use"
    text, *calls = message.content
    assert text.text == "I look."
    assert [(each.name, each.input) for each in calls] == [
        ("get_time", {"town": "Oslo"}),
        ("get_time", {"town": "Nowhere"}),
    ]
    assert len({each.id for each in calls}) == 2
    results = [
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no such town", "is_error": True},
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "12:00"}]},
    ]
    history = [*body["messages"], {"role": "assistant", "content": message.content}]
    told = await both(client, **body | {"messages": [*history, {"role": "user", "content": results}]})
    assert told.content[0].text == "It is noon in Oslo."
    with pytest.raises(anthropic.BadRequestError, match=calls[0].id) as caught:
        await client.messages.create(**body | {"messages": [*history, {"role": "user", "content": results[:1]}]})
    assert "messages[1]" in str(caught.value)


async def test_the_clients_own_loop_runs_tools(client: AsyncAnthropic) -> None:
    """It asks for a conversation that the server keeps, and goes on without."""
    asked_for = []

    @anthropic.beta_async_tool
    async def get_time(town: str) -> str:
        """The time in a town."""
        asked_for.append(town)
        if town == "Nowhere":
            raise ValueError("Error: no such town")
        return "12:00"

    runner = client.beta.messages.tool_runner(**asked("time in two towns?"), tools=[get_time])
    last = await runner.until_done()
    assert sorted(asked_for) == ["Nowhere", "Oslo"]
    [block] = last.content
    assert block.type == "text"
    assert block.text == "It is noon in Oslo."


async def test_thinking_is_a_block_that_may_be_sent_back(client: AsyncAnthropic) -> None:
    body = asked("why", thinking={"type": "enabled", "budget_tokens": 100})
    message = await both(client, **body)
    thinking, text = message.content
    assert (thinking.thinking, text.text) == ("Let me see.", "Because.")
    assert thinking.signature
    assert message.usage.output_tokens_details.thinking_tokens == len("Let me see.\n</think>")
    history = [*body["messages"], {"role": "assistant", "content": message.content}]
    body |= {"messages": [*history, {"role": "user", "content": "thanks"}], "thinking": {"type": "disabled"}}
    assert [block.text for block in (await both(client, **body)).content] == ["Welcome."]
    async with client.messages.stream(**asked("why", thinking={"type": "adaptive"})) as stream:
        kinds = [event.type async for event in stream]
    assert kinds.count("signature") == 1
    assert kinds.index("thinking") < kinds.index("signature") < kinds.index("text")


class Answer(pydantic.BaseModel):
    """What the scripted model answers."""

    town: str
    hour: int = pydantic.Field(ge=0, le=23)


async def test_a_structured_answer_is_parsed(client: AsyncAnthropic) -> None:
    parsed = await client.messages.parse(**asked("answer"), output_format=Answer)
    assert parsed.parsed_output == Answer(town="Oslo", hour=12)
    async with client.messages.stream(**asked("answer"), output_format=Answer) as stream:
        assert (await stream.get_final_message()).parsed_output == parsed.parsed_output


async def test_the_beta_client_is_served_alike(client: AsyncAnthropic) -> None:
    message = await client.beta.messages.create(
        **asked("hello"),
        betas=["context-management-2025-06-27"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "someone"},
    )
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello!"


@pytest.mark.parametrize("stops", [["b,c"], ["never", "b,c"]])
async def test_a_stop_sequence_ends_the_text_before_it(client: AsyncAnthropic, stops: list[str]) -> None:
    message = await both(client, **asked("stop", stop_sequences=stops))
    assert [block.text for block in message.content] == ["a,"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "b,c")


async def test_an_answer_ends_at_max_tokens_or_where_the_context_is_full(client: AsyncAnthropic) -> None:
    message = await both(client, **asked("long", max_tokens=5))
    assert ([block.text for block in message.content], message.stop_reason) == (["x" * 5], "max_tokens")
    message = await both(client, **asked("long", max_tokens=20_000))
    num_prompt = len("long") + 3 + NO_THINKING
    assert len(message.content[0].text) == 700 - num_prompt
    assert message.stop_reason == "model_context_window_exceeded"


async def test_half_a_call_is_no_block_but_its_pieces_were_streamed(client: AsyncAnthropic) -> None:
    body = asked("cut", tools=[TOOL], max_tokens=BOTH.index("Nowhere"))
    whole = await client.messages.create(**body)
    assert [block.type for block in whole.content] == ["text", "tool_use"]
    assert whole.stop_reason == "max_tokens"
    pieces: dict[int, str] = {}
    stream = await client.messages.create(**body, stream=True)
    async for event in stream:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            pieces[event.index] = pieces.get(event.index, "") + event.delta.partial_json
    first, second = pieces.values()
    assert json.loads(first) == {"town": "Oslo"}
    assert second == '{"town": "'


async def test_errors_have_the_clients_classes_and_words(client: AsyncAnthropic, server: HttpServer) -> None:
    for body, kind, status, words in (
        (asked("hello", model="none"), anthropic.NotFoundError, 404, "there is no model 'none' here"),
        (asked("x" * 800), anthropic.BadRequestError, 400, "prompt is too long: the prompt has"),
        (asked("full"), anthropic.OverloadedError, 529, "2 wait, at most 2"),
        (asked("hello", max_tokens=0), anthropic.BadRequestError, 400, "max_tokens is 0"),
        (asked("hello", extra_body={"foo": 1}), anthropic.BadRequestError, 400, "foo is no field"),
    ):
        with pytest.raises(kind, match=words) as caught:
            await client.messages.create(**body)
        assert isinstance(caught.value, anthropic.APIStatusError)
        assert caught.value.status_code == status
        assert (caught.value.request_id or "").startswith("req-")
    async with AsyncAnthropic(base_url=server.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError, match="no valid API key"):
            await stranger.messages.create(**asked("hello"))
    async with AsyncAnthropic(base_url=server.url, auth_token=KEY, max_retries=0) as friend:
        assert (await friend.messages.create(**asked("hello"))).content


async def test_a_budget_of_thinking_is_refused_by_its_own_name_where_there_is_none() -> None:
    service = ScriptedService(Script(reply=say("Hello!"), is_enforced=True))
    async with (
        listening(make_app(service, ServerConfig(port=0))) as plain,
        AsyncAnthropic(base_url=plain.url, api_key="any", max_retries=0) as client,
    ):
        await service.until_ready()
        with pytest.raises(anthropic.BadRequestError, match=r"thinking\.budget_tokens is 100, and this model has no"):
            await client.messages.create(**asked("hello", thinking={"type": "enabled", "budget_tokens": 100}))
        message = await client.messages.create(**asked("hello", thinking={"type": "adaptive"}))
        assert message.content[0].text == "Hello!"
        # 8 tokens: a template without the switch is not told of it.
        assert message.usage.input_tokens == 8


async def test_a_stream_that_fails_raises_what_failed(client: AsyncAnthropic) -> None:
    pieces: list[str] = []

    async def read() -> None:
        async with client.messages.stream(**asked("fail")) as stream:
            async for piece in stream.text_stream:
                pieces.append(piece)

    with pytest.raises(anthropic.APIStatusError) as caught:
        await read()
    assert "".join(pieces) == "abc"
    assert caught.value.type == "api_error"


async def test_a_reader_that_leaves_ends_its_message(client: AsyncAnthropic, service: ScriptedService) -> None:
    async with client.messages.stream(**asked("long", max_tokens=100_000)) as stream:
        async for event in stream:
            if event.type == "content_block_delta":
                break
    await service.until_idle()
    async with client.messages.stream(**asked("gate")) as stream:
        async for event in stream:
            if event.type == "content_block_delta":
                break
    await until(lambda: not service.stats()["models"]["scripted"]["client_open_requests"])


async def test_models_are_listed_for_the_client(client: AsyncAnthropic) -> None:
    page = await client.models.list()
    [model] = page.data
    assert (model.id, model.display_name, model.type, model.lifecycle) == ("scripted", "scripted", "model", "active")
    assert (model.max_input_tokens, page.has_more, page.first_id, page.last_id) == (700, False, "scripted", "scripted")
    assert model.created_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert [each async for each in client.models.list()] == [model]
    assert (await client.models.retrieve("scripted")).id == "scripted"
    with pytest.raises(anthropic.NotFoundError, match="no model of that name"):
        await client.models.retrieve("none")
