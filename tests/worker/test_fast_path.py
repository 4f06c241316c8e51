"""The fast path against the usual way: the same events, the same bytes, the same counts; and who must not be on it."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.conftest import WORDS, ClientBench, join, read_all, text_event

import headway_wire as wire
from headway._native import HistogramCounts, Outlet, StreamedBody, TextEvents, TokenTimes, WriteQueue
from headway.core.output import TextDelta, Usage
from headway.errors import HeadwayError, InternalError
from headway.server.events import EventTemplate, event
from headway.text.tokenizer import Tokenizer
from headway.worker.stream import RequestStream

TEMPLATE = EventTemplate(lambda text: event({"model": "m", "text": text}))
BOUNDS = (0.5, 1.0, 2.0)
END_ID = 256


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data


@dataclass
class Reader:
    """A door's reader of one stream: its texts are events in a chunked body; some texts it has to wait with."""

    bench: ClientBench
    stream: RequestStream
    is_fast: bool
    transport: Transport = field(default_factory=Transport)
    queue: WriteQueue = field(default_factory=WriteQueue)
    gaps: HistogramCounts = field(default_factory=lambda: HistogramCounts(BOUNDS))
    times: TokenTimes | None = None
    end: TextDelta | Exception | None = None
    task: "asyncio.Task[None] | None" = None
    num_taken: int = 0
    """Tokens that came the usual way."""

    def __post_init__(self) -> None:
        outlet: Any = Outlet(self.transport, -1)  # type: ignore[arg-type]
        self.body = StreamedBody(self.queue, outlet, is_chunked=True, schedule=lambda: None)
        self.body.can_write = True
        self.task = asyncio.ensure_future(self.read())

    async def read(self) -> None:
        try:
            while await self.stream.feed(self.take, self.offer_events if self.is_fast else None):  # noqa: ASYNC110
                await asyncio.sleep(0)  # it is behind
        except HeadwayError as error:
            self.end = error

    def take(self, deltas: Any) -> bool:
        now_s = self.bench.clock.now()
        for delta in deltas:
            self.num_taken += len(delta.token_ids)
            if delta.token_ids and self.times is None:
                self.times = TokenTimes(now_s, len(delta.token_ids), self.gaps)
            elif delta.token_ids and self.times is not None:
                self.times.add(len(delta.token_ids), now_s)
            if delta.text:
                self.body.write(TEMPLATE.fill(delta.text))
            if delta.finish_reason is not None:
                self.end = delta
        return self.body.can_write

    def offer_events(self) -> TextEvents | None:
        if self.times is None or not self.body.can_write:
            return None
        return TextEvents(self.body, TEMPLATE.head, TEMPLATE.tail, self.times)

    @property
    def seen(self) -> tuple[Any, ...]:
        """All that anybody sees of it."""
        self.queue.flush()
        times = self.times
        told = (
            self.end if isinstance(self.end, TextDelta | None) else str(self.end),
            times and (times.first_s, times.last_s, times.num_tokens),
            (self.gaps.in_bucket, self.gaps.sum),
        )
        return self.transport.written, self.stream.usage, *told, self.bench.client.stats(), self.bench.channel.sent


async def read(bench: ClientBench, *, is_fast: bool = True, request_id: str = "r", **sampling: Any) -> Reader:
    reader = Reader(bench, await bench.open(request_id, **sampling), is_fast)
    await asyncio.sleep(0)
    return reader


def say_plain(bench: ClientBench, *messages: wire.Up) -> None:
    """As a channel does with one read."""
    payloads = [bench.client.take_plain(wire.encode(message)) for message in messages]
    bench.client.on_messages([wire.decode_up(payload) for payload in payloads])


def tell(bench: ClientBench, *events: wire.TokenEvent) -> None:
    say_plain(bench, wire.Step(events=list(events), num_running=1))


async def stop(*readers: Reader) -> None:
    for reader in readers:
        assert reader.task is not None
        reader.task.cancel()
        await asyncio.gather(reader.task, return_exceptions=True)


def chunk(text: str) -> bytes:
    data = TEMPLATE.fill(text)
    return b"%x\r\n" % len(data) + data + b"\r\n"


async def test_plain_tokens_pass_by_what_the_first_one_came_through(bench: ClientBench) -> None:
    reader = await read(bench)
    for text in "abc":
        tell(bench, text_event(text))
    assert reader.num_taken == 1
    reader.queue.flush()
    assert reader.transport.written == chunk("a") + chunk("b") + chunk("c")
    assert reader.stream.usage == Usage(2, 3)
    assert bench.client.stats()["client_output_tokens_total"] == 3
    assert bench.client.stats()["num_running"] == 1  # the rest of the Step was told
    tell(bench, text_event("d", finish_reason="length"))
    await asyncio.sleep(0)
    assert isinstance(reader.end, TextDelta)
    assert reader.end.text == "d"
    assert reader.stream.usage == Usage(2, 4)
    assert bench.settled == [True]


async def test_a_character_goes_on_where_the_way_changes(bench: ClientBench) -> None:
    reader = await read(bench)
    tell(bench, text_event(b"a\xf0\x9f"))  # the usual way
    tell(bench, text_event(b"\x91"))  # the fast path
    tell(bench, text_event(b"\x8b\xe2"))
    tell(bench, text_event(b"\x82", finish_reason="length"))  # the usual way, with what the fast path held
    await asyncio.sleep(0)
    reader.queue.flush()
    assert reader.transport.written == chunk("a") + chunk("👋") + chunk("\ufffd")


@pytest.mark.parametrize(
    "sampling",
    [{"stop": ("xyz",)}, {"logprobs": 0}, {"n": 2}],
    ids=["stop strings", "log-probabilities", "two choices"],
)
async def test_what_is_not_plain_takes_the_usual_way(bench: ClientBench, sampling: dict[str, Any]) -> None:
    reader = await read(bench, **sampling)
    for text in "abc":
        logprobs = [wire.TokenLogprobs(-1.0)] if "logprobs" in sampling else None
        tell(bench, text_event(text, logprobs=logprobs))
    assert reader.num_taken == 3
    await stop(reader)


async def test_events_behind_one_that_is_left_are_left_too(bench: ClientBench) -> None:
    reader = await read(bench)
    tell(bench, text_event("a"))
    unknown = text_event("b", logprobs=[wire.TokenLogprobs(-1.0)])  # nobody asked for them
    say_plain(bench, wire.Step(events=[unknown, text_event("c")]), wire.Step(events=[text_event("d")]))
    reader.queue.flush()
    assert reader.transport.written == b"".join(map(chunk, "abcd"))
    assert reader.num_taken == 4
    tell(bench, text_event("e"))
    assert reader.num_taken == 4  # it came back
    await stop(reader)


async def test_a_reader_who_is_behind_is_waited_for_and_comes_back(bench: ClientBench) -> None:
    reader = await read(bench)
    tell(bench, text_event("a"))
    reader.body.can_write = False
    tell(bench, text_event("b"))
    tell(bench, text_event("c" * 20))  # 180 bytes in the queue, which takes 100
    assert bench.channel.of(wire.Hold) == [wire.Hold(request_id="r", is_held=True)]
    reader.body.can_write = True
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.channel.of(wire.Hold)[1:] == [wire.Hold(request_id="r", is_held=False)]
    tell(bench, text_event("d"))
    reader.queue.flush()
    assert reader.transport.written == b"".join(map(chunk, ["a", "b", "c" * 20, "d"]))
    assert reader.num_taken == 22
    await stop(reader)


async def leave(reader: Reader) -> None:
    await stop(reader)
    await reader.stream.aclose()


async def fail(reader: Reader) -> None:
    reader.stream.fail(InternalError("x"))


async def time_out(reader: Reader) -> None:
    reader.bench.clock.advance(5.0)


@pytest.mark.parametrize("act", [leave, fail, time_out])
async def test_after_the_end_nothing_is_written(bench: ClientBench, act: Callable[[Reader], Any]) -> None:
    reader = await read(bench, timeout_s=5.0)
    tell(bench, text_event("a"))
    tell(bench, text_event("b\xe2"))
    await act(reader)
    reader.queue.flush()
    written = reader.transport.written
    tell(bench, text_event("late"))
    await asyncio.sleep(0)
    reader.queue.flush()
    assert reader.transport.written == written
    assert reader.stream.usage.num_output_tokens == 1 + len("b\xe2".encode())
    assert bench.client.stats()["client_overshoot_tokens_total"] == 4
    tell(bench, text_event("", finish_reason="abort"))
    assert bench.client.num_open == 0


async def test_who_was_cancelled_is_given_nothing_more_and_who_comes_next_all(bench: ClientBench) -> None:
    reader = await read(bench)
    for text in ("a", "b\xe9"):
        tell(bench, text_event(text))
    assert reader.num_taken == 1
    await stop(reader)
    tell(bench, text_event("c"))
    tell(bench, text_event("d", finish_reason="length"))
    assert join(await read_all(reader.stream)) == "cd"
    reader.queue.flush()
    assert reader.transport.written == chunk("a") + chunk("b\xe9")


async def test_streams_with_the_same_id_are_two(bench: ClientBench) -> None:
    first = await read(bench)
    task = asyncio.create_task(bench.submit("r"))
    await asyncio.sleep(0)
    say_plain(bench, wire.Accepted(request_id="r#2"))
    second = Reader(bench, await task, True)
    await asyncio.sleep(0)
    for round_ in range(3):
        tell(bench, text_event(f"{round_}", request_id="r#2"), text_event("x"))
    for reader, text in ((first, "xxx"), (second, "012")):
        reader.queue.flush()
        assert reader.transport.written == b"".join(map(chunk, text))
        assert reader.num_taken == 1
    await stop(first, second)


@pytest.mark.parametrize(
    "payload", [b"", b"\x81", b"\xc1", b"\x81\xa4type\xa4step", b"\x81\xa4type\xa4step\xff", b"x" * 40]
)
async def test_what_is_no_message_is_left_for_the_decoder_to_refuse(bench: ClientBench, payload: bytes) -> None:
    reader = await read(bench)
    tell(bench, text_event("a"))
    assert bench.client.take_plain(payload) is payload
    await stop(reader)


EVENTS = st.lists(
    st.one_of(
        st.builds(lambda ids: ("tokens", ids), st.lists(st.integers(0, 260 + len(WORDS)), min_size=1, max_size=4)),
        st.builds(
            lambda data: ("tokens", list(data)), st.text(st.sampled_from('aé漢👋"\n\\'), max_size=3).map(str.encode)
        ),
        st.sampled_from([("tick", 1), ("pause", 0), ("go on", 0), ("turn", 0), ("nothing", 0)]),
    ),
    max_size=24,
)


def acts_of(bench: ClientBench, reader: Reader, acts: Any, sizes: Iterator[int]) -> Iterator[list[wire.Up]]:
    """What the worker says in one read after the other; between them the reader and the clock do what they do."""
    messages: list[wire.Up] = []
    left = next(sizes)
    for kind, value in acts:
        if kind == "tokens":
            forced = len(value) // 3
            messages.append(wire.Step(events=[wire.TokenEvent("r", 0, value, num_forced_tokens=forced)] * bool(value)))
            left -= 1
        elif kind == "nothing":
            messages.append(wire.Step())
        if messages and left <= 0:
            yield messages
            messages, left = [], next(sizes)
        if kind == "tick":
            bench.clock.advance(float(value))
        elif kind in ("pause", "go on"):
            reader.body.can_write = kind == "go on"
    yield messages


@settings(deadline=None, max_examples=150)
@given(
    acts=EVENTS,
    end=st.sampled_from(["stop", "length", "abort", "error", None]),
    skips=st.booleans(),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_both_ways_are_the_same_bytes_and_counts(
    tokenizer: Tokenizer, acts: Any, end: str | None, skips: bool, sizes: list[int]
) -> None:
    async def run(*, is_fast: bool) -> tuple[Any, ...]:
        bench = ClientBench(tokenizer)
        reader = await read(bench, is_fast=is_fast, skip_special_tokens=skips)
        for messages in acts_of(bench, reader, acts, iter(sizes * 30)):
            say_plain(bench, *messages)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        reader.body.can_write = True
        for _ in range(8):
            await asyncio.sleep(0)
        if end is not None:
            error = InternalError("x").to_wire() if end == "error" else None
            tell(bench, text_event("" if end == "error" else "z", finish_reason=end, error=error))
        await asyncio.sleep(0)
        await stop(reader)
        return reader.seen

    usual, fast = asyncio.run(run(is_fast=False)), asyncio.run(run(is_fast=True))
    assert unframed(fast[0]) == unframed(usual[0])
    assert fast[1:] == usual[1:]


def unframed(body: bytes) -> list[str]:
    """The texts of a body's events, joined where they were told together, which both ways may do elsewhere."""
    texts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        data, body = body[: int(size, 16)], body[int(size, 16) + 2 :]
        assert data.startswith(TEMPLATE.head)
        assert data.endswith(TEMPLATE.tail)
        texts.append(data)
    return [text.decode() for text in texts]
