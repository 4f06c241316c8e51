"""A stream's bytes: templates are what the encoder writes, what is there is one write, and who has to wait waits."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.types import Message
from tests.server.conftest import FakeService, FakeStream, sse, token

from headway.core.output import TextDelta
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.server.events import WRITE_EXTENSION, EventStream, EventTemplate, event
from headway.server.generation import Generation
from headway.server.openai.answers import Options
from headway.server.openai.chunks import ChatChunks, CompletionChunks
from headway.server.writes import BatchedTransport, Exchange, WriteBatch
from headway.worker.stream import Take

TEXTS = ("", "a", ' "quoted"\n', "\\", "é🚢\u2028", "\x00headway\x00", "\x7f\ufffd", "</script>")


@pytest.mark.parametrize("text", TEXTS)
def test_a_filled_template_is_the_event_of_the_text(text: str) -> None:
    def make_event(content: str) -> bytes:
        return event({"model": "\x00headway\x00", "choices": [{"content": content, "end": None}]})

    assert EventTemplate(make_event).fill(text) == make_event(text)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("chunks_of", [ChatChunks, CompletionChunks])
def test_chunks_from_a_template_are_those_of_the_encoder(chunks_of: Any, include_usage: bool) -> None:
    generation: Any = SimpleNamespace(model='a "model"', prompt_token_ids=[[1]])
    options = Options(id="r", has_logprobs=False, include_usage=include_usage, created=7)
    usage = {"usage": None} if include_usage else {}
    chunks = chunks_of(options, generation)
    for choice in (0, 1):
        chunks.chunk(choice, TextDelta(choice, "first", (1,)))
        assert len(chunks._templates) == choice + 1
    for choice, text in ((0, "b"), (1, "c"), (0, "é\n")):
        is_chat = chunks_of is ChatChunks
        said = {"delta": {"content": text}} if is_chat else {"text": text}
        body = {
            "id": "r",
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": 7,
            "model": 'a "model"',
            "choices": [{"index": choice, **said, "logprobs": None, "finish_reason": None}],
            **usage,
        }
        assert chunks.chunk(choice, TextDelta(choice, text, (2,))) == event(body)
    assert chunks.chunk(0, TextDelta(0, "", (3,))) == b""


async def open_generation(app: Any, max_tokens: int = 9) -> Generation:
    request = GenerateRequest("r", "m", TextPrompt("x"), SamplingParams(max_tokens=max_tokens))
    return await Generation.open(app.state.headway, [request], 0.0)


def make_stream(generation: Generation) -> EventStream:
    options = Options(id="r", has_logprobs=False, created=7)
    return EventStream(generation, lambda g: CompletionChunks(options, g), write_timeout_s=10)


async def test_deltas_that_are_there_together_are_one_write(
    app: Any, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = [[token(0, "a"), token(0, "b")], [token(0, "c"), token(0, "", finish_reason="stop")]]

    async def feed(_: FakeStream, take: Take, offer_events: object) -> bool:
        return any(not take(deltas.pop(0)) for _ in range(len(deltas)))

    monkeypatch.setattr(FakeStream, "feed", feed)
    bodies: list[bytes] = []

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))

    await make_stream(await open_generation(app))({"type": "http"}, never, send)
    assert [body.count(b"data: ") for body in bodies] == [0, 2, 3]
    assert [chunk["choices"][0]["text"] for chunk in sse(b"".join(bodies).decode())[:-1]] == ["a", "b", "c", ""]


@pytest.mark.parametrize("fault", [None, ZeroDivisionError("injected")])
async def test_the_end_of_the_last_choice_goes_out_with_the_end_of_the_stream(
    app: Any, service: FakeService, fault: Exception | None
) -> None:
    script: list[TextDelta | Exception] = [token(0, "a", finish_reason="stop"), token(1, "b"), token(1, "c")]
    script += [token(1, "d", finish_reason="length"), *([fault] if fault else [])]
    service.script = lambda _: script  # type: ignore[assignment,return-value]
    bodies: list[bytes] = []

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))

    request = GenerateRequest("r", "m", TextPrompt("x"), SamplingParams(max_tokens=9, n=2))
    await make_stream(await Generation.open(app.state.headway, [request], 0.0))({"type": "http"}, never, send)
    num_ends = [body.count(b'"finish_reason":"') for body in bodies if body]
    assert num_ends == ([1, 0, 0, 1, 0] if fault else [1, 0, 0, 1])
    assert bodies[-1].endswith(b"data: [DONE]\n\n")
    assert (b'"error"' in bodies[-1]) is (fault is not None)


async def never() -> Message:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def test_a_write_that_need_not_wait_passes_the_layers_and_the_others_go_through_them(
    app: Any, service: FakeService
) -> None:
    service.script = lambda _: [token(0, "a"), token(0, "b"), token(0, "c", finish_reason="length")]
    written: list[tuple[str, bytes]] = []

    class Writer:
        def try_write(self, data: bytes) -> bool:
            is_taken = b'"b"' not in data
            if is_taken:
                written.append(("past", data))
            return is_taken

        def has_room(self) -> bool:
            return True

        body = None

    async def send(message: Message) -> None:
        written.append((message["type"], message.get("body", b"")))

    scope = {"type": "http", "extensions": {WRITE_EXTENSION: Writer()}}
    await make_stream(await open_generation(app))(scope, never, send)
    ways = [way for way, _ in written]
    assert ways == ["http.response.start", "past", "http.response.body", "http.response.body"]
    texts = [chunk["choices"][0]["text"] for chunk in sse(b"".join(data for _, data in written).decode())[:-1]]
    assert texts == ["a", "b", "c", ""]


class FakeTransport:
    def __init__(self) -> None:
        self.done: list[bytes | str] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> Any:
        return None


def make_exchange(batch: WriteBatch, **changed: Any) -> tuple[Exchange, FakeTransport]:
    transport: Any = FakeTransport()
    flow = SimpleNamespace(write_paused=changed.pop("write_paused", False), resume_reading=lambda: None)
    scope = {"http_version": changed.pop("http_version", "1.1")}
    fields = {"disconnected": False, "chunked_encoding": True, "response_complete": False, **changed}
    batched = BatchedTransport(transport, batch)
    cycle = SimpleNamespace(transport=batched, flow=flow, scope=scope, send=None, **fields)
    return Exchange(cycle, batched.outlet, batch), transport


def make_batch() -> WriteBatch:
    return WriteBatch(asyncio.get_running_loop())


async def test_a_chunk_is_framed_as_http_wants_it() -> None:
    exchange, transport = make_exchange(make_batch())
    assert exchange.try_write(b"x" * 26)
    await asyncio.sleep(0)
    assert transport.done == [b"1a\r\n" + b"x" * 26 + b"\r\n"]


async def test_http_1_0_has_no_chunks() -> None:
    exchange, transport = make_exchange(make_batch(), http_version="1.0", chunked_encoding=False)
    assert exchange.try_write(b"x" * 26)
    await asyncio.sleep(0)
    assert transport.done == [b"x" * 26]


async def test_what_one_turn_writes_goes_out_together_at_its_end() -> None:
    batch = make_batch()
    exchanges = [make_exchange(batch) for _ in range(3)]
    for round_ in (b"a", b"b"):
        for exchange, _ in exchanges:
            assert exchange.try_write(round_)
        assert not any(transport.done for _, transport in exchanges)
        await asyncio.sleep(0)
        assert [transport.done for _, transport in exchanges] == [[b"1\r\n" + round_ + b"\r\n"]] * 3
        for _, transport in exchanges:
            transport.done.clear()


async def test_a_connection_is_closed_after_what_was_written_to_it_and_at_once_where_it_is_aborted() -> None:
    fake: Any = FakeTransport()
    transport = BatchedTransport(fake, make_batch())
    transport.write(b"x")
    transport.close()
    transport.close()
    transport.write(b"too late")
    assert transport.is_closing()
    assert not fake.done
    await asyncio.sleep(0)
    assert fake.done == [b"x", "closed"]
    transport.abort()
    assert fake.done[-1] == "aborted"


async def test_a_connection_that_closed_before_the_end_of_the_turn_is_left_out() -> None:
    batch = make_batch()
    (gone, gone_transport), (other, other_transport) = make_exchange(batch), make_exchange(batch)
    assert gone.try_write(b"x")
    assert other.try_write(b"x")
    gone_transport.is_closed = True
    await asyncio.sleep(0)
    assert not gone_transport.done
    assert other_transport.done


@pytest.mark.parametrize(
    ("changed", "is_taken"),
    [
        ({"write_paused": True}, False),
        ({"chunked_encoding": None}, False),
        ({"response_complete": True}, False),
        ({"disconnected": True}, True),  # nobody is there any more: dropped, as uvicorn does
    ],
)
async def test_nothing_is_written_past_a_reader_who_is_behind_or_gone(changed: dict[str, Any], is_taken: bool) -> None:
    exchange, transport = make_exchange(make_batch(), **changed)
    assert exchange.try_write(b"x") is is_taken
    await asyncio.sleep(0)
    assert not transport.done


@pytest.mark.parametrize("change", [("flow", SimpleNamespace(write_paused=True)), ("response_complete", True)])
async def test_who_was_written_to_once_is_looked_at_again_when_something_has_changed(change: tuple[str, Any]) -> None:
    exchange, transport = make_exchange(make_batch())
    assert exchange.try_write(b"x")
    setattr(exchange._cycle, *change)
    exchange.hold()
    assert not exchange.try_write(b"y")
    await asyncio.sleep(0)
    assert transport.done == [b"1\r\nx\r\n"]


@pytest.mark.parametrize("is_behind", [False, True])
async def test_there_is_room_until_a_reader_is_behind(is_behind: bool) -> None:
    exchange, _ = make_exchange(make_batch(), write_paused=is_behind)
    assert exchange.has_room() is not is_behind


@pytest.mark.parametrize("is_gone_before", [False, True])
async def test_a_watched_clients_leaving_is_told_once(is_gone_before: bool) -> None:
    exchange, _ = make_exchange(make_batch(), disconnected=is_gone_before)
    told: list[bool] = []
    exchange.watch(lambda: told.append(True))
    assert not told  # never from within: the watching task could not be cancelled there
    if not is_gone_before:
        exchange.lose_client()
    await asyncio.sleep(0)
    exchange.lose_client()
    assert told == [True]


async def test_nobody_is_told_of_a_client_who_is_watched_no_more() -> None:
    exchange, _ = make_exchange(make_batch(), disconnected=True)
    told: list[bool] = []
    exchange.watch(lambda: told.append(True))
    exchange.watch(None)
    await asyncio.sleep(0)
    exchange.lose_client()
    assert not told


def test_the_encoder_escapes_the_mark() -> None:
    assert b"\x00" not in msgspec.json.encode(EventTemplate._MARK)
