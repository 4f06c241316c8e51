"""A stream that is fed to a taker: in the worker's own call where it can be, by way of the watched queue where not."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.worker.conftest import ClientBench, join, read_all, text_event

import headway_wire as wire
from headway.core.output import TextDelta
from headway.errors import InternalError, WorkerDied
from headway.text.tokenizer import Tokenizer
from headway.worker.stream import MAX_QUEUED_DELTAS_A_TAKE, RequestStream


class Taker:
    """Keeps what it is given; wants more as long as `wants_more` says so."""

    def __init__(self, wants_more: Callable[[], bool] = lambda: True) -> None:
        self.given: list[Sequence[TextDelta]] = []
        self._wants_more = wants_more

    def take(self, deltas: Sequence[TextDelta]) -> bool:
        self.given.append(list(deltas))
        return self._wants_more()

    @property
    def text(self) -> str:
        return join([delta for deltas in self.given for delta in deltas])


async def start_feeding(stream: RequestStream, taker: Taker) -> "asyncio.Task[bool]":
    task = asyncio.create_task(stream.feed(taker.take))
    await asyncio.sleep(0)
    return task


async def test_what_comes_is_taken_in_the_workers_call_and_the_end_returns(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    bench.tell(text_event("a"))
    feeding = await start_feeding(stream, taker)
    assert taker.text == "a"
    for place, text in enumerate("bcd"):
        bench.tell(text_event(text))
        assert taker.text == "abcd"[: place + 2]  # no turn of the loop between
    assert not feeding.done()
    bench.tell(text_event("e"), text_event("f", finish_reason="length"))
    assert await feeding is False
    assert [len(deltas) for deltas in taker.given] == [1, 1, 1, 1, 2]
    assert taker.text == "abcdef"


async def test_a_step_runs_no_task_of_its_streams(bench: ClientBench) -> None:
    streams = [await bench.open(name) for name in "rst"]
    takers = [Taker() for _ in streams]
    feedings = [await start_feeding(stream, taker) for stream, taker in zip(streams, takers, strict=True)]
    scheduled: list[object] = []
    loop = asyncio.get_running_loop()
    call_soon, loop.call_soon = loop.call_soon, lambda *args, **_: scheduled.append(args)  # type: ignore[assignment,method-assign]
    try:
        bench.tell(*[text_event("x", request_id=name) for name in "rst"])
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    assert [taker.text for taker in takers] == ["x"] * 3
    assert scheduled == []
    for feeding in feedings:
        feeding.cancel()


async def test_who_wants_no_more_is_held_back_by_the_queue(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker(lambda: False)
    feeding = await start_feeding(stream, taker)
    bench.tell(text_event("a"))
    bench.tell(text_event("b" * 8))  # 72 bytes in the queue
    assert bench.channel.of(wire.Hold) == []
    assert await feeding is True
    bench.tell(text_event("c" * 4))  # 108, over 100
    assert taker.text == "a"
    assert bench.channel.of(wire.Hold) == [wire.Hold(request_id="r", is_held=True)]
    assert await stream.feed(taker.take) is True
    assert taker.text == "a" + "b" * 8 + "c" * 4
    assert bench.channel.of(wire.Hold)[1:] == [wire.Hold(request_id="r", is_held=False)]


async def test_a_late_taker_is_given_the_queue_in_parts(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    for _ in range(MAX_QUEUED_DELTAS_A_TAKE + 1):
        bench.tell(text_event("a"))
    bench.tell(text_event("", finish_reason="length"))
    assert await stream.feed(taker.take) is False
    assert [len(deltas) for deltas in taker.given] == [MAX_QUEUED_DELTAS_A_TAKE, 2]


async def test_a_taker_that_fails_hears_of_it_alone(bench: ClientBench) -> None:
    def fail() -> bool:
        raise ZeroDivisionError("injected")

    stream, other = await bench.open(), await bench.open("s")
    feeding = await start_feeding(stream, Taker(fail))
    bench.tell(text_event("a"), text_event("b", request_id="s", finish_reason="length"))
    with pytest.raises(ZeroDivisionError):
        await feeding
    assert join(await read_all(other)) == "b"
    assert bench.channel.of(wire.Abort) == []
    await stream.aclose()
    assert bench.channel.of(wire.Abort) == [wire.Abort(request_id="r", reason="disconnect")]


async def test_text_before_an_error_is_taken_and_then_the_error_is_raised(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    feeding = await start_feeding(stream, taker)
    error = InternalError("x").to_wire()
    bench.tell(text_event("a"), text_event("", finish_reason="error", error=error))
    with pytest.raises(InternalError):
        await feeding
    assert taker.text == "a"


async def test_a_death_is_raised(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    feeding = await start_feeding(stream, taker)
    bench.die()
    with pytest.raises(WorkerDied):
        await feeding


async def test_a_reader_that_left_is_given_nothing_more(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    feeding = await start_feeding(stream, taker)
    feeding.cancel()
    bench.tell(text_event("a"))
    with pytest.raises(asyncio.CancelledError):
        await feeding
    assert taker.given == []
    bench.tell(text_event("b", finish_reason="length"))
    assert join(await read_all(stream)) == "ab"


async def test_a_close_ends_the_feeding(bench: ClientBench) -> None:
    stream, taker = await bench.open(), Taker()
    feeding = await start_feeding(stream, taker)
    await stream.aclose()
    assert await feeding is False


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whoever_pauses_where_he_likes_is_given_all_in_order(tokenizer: Tokenizer, data: st.DataObject) -> None:
    async def run() -> None:
        bench = ClientBench(tokenizer)
        stream = await bench.open()
        taker = Taker(lambda: data.draw(st.booleans()))
        feeding: asyncio.Task[bool] | None = None
        said = ""
        for text in data.draw(st.lists(st.text(st.sampled_from("abc"), max_size=12), max_size=12)):
            if feeding is None or feeding.done():
                feeding = asyncio.create_task(stream.feed(taker.take))
            for _ in range(data.draw(st.integers(0, 2))):
                await asyncio.sleep(0)
            bench.tell(text_event(text))
            said += text
        bench.tell(text_event("!", finish_reason="length"))
        if feeding is not None:
            await feeding
        while await stream.feed(taker.take):
            pass
        assert taker.text == said + "!"
        holds = [hold.is_held for hold in bench.channel.of(wire.Hold)]
        assert holds == [place % 2 == 0 for place in range(len(holds))]
        assert bench.clock.num_timers == 0

    asyncio.run(run())
