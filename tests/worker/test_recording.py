"""Steps on their way from a worker to who asked, and the trace that is made of them."""

import asyncio
import json

import pytest
from tests.worker.conftest import ClientBench

import headway_wire as wire
from headway.errors import QueueFull, UnsupportedFeature, WorkerDied
from headway.testing.fake_clock import FakeClock
from headway.testing.scripted_service import ScriptedService
from headway.worker.recording import Recording
from headway.worker.trace import make_trace


def step(begin_ns: int, *spans: wire.Span, num_tokens: int = 1) -> wire.ProfiledStep:
    end_ns = spans[-1].end_ns if spans else begin_ns + 10
    return wire.ProfiledStep(begin_ns=begin_ns, end_ns=end_ns, num_sequences=1, num_tokens=num_tokens, spans=[*spans])


class Bench:
    def __init__(self) -> None:
        self.sent: list[wire.Down] = []
        self.clock = FakeClock()
        self.recording = Recording(self.sent.append, self.clock)

    async def ask(self, num_steps: int) -> "asyncio.Task[list[wire.ProfiledStep]]":
        task = asyncio.create_task(self.recording.record(num_steps, timeout_s=5.0))
        await asyncio.sleep(0)
        return task


async def test_steps_are_given_to_who_asked() -> None:
    bench = Bench()
    task = await bench.ask(2)
    with pytest.raises(QueueFull, match="recorded already"):
        await bench.recording.record(1, 5.0)
    for message in (step(1), step(2), wire.ProfileEnd()):
        bench.recording.take(message)
    assert [it.begin_ns for it in await task] == [1, 2]
    assert bench.sent == [wire.Profile(num_steps=2)]
    assert bench.clock.num_timers == 0


async def test_at_the_time_out_it_ends_with_what_there_is() -> None:
    bench = Bench()
    task = await bench.ask(2)
    bench.recording.take(step(1))
    bench.clock.advance(5.0)
    assert bench.sent[1:] == [wire.Profile(num_steps=0)]
    bench.recording.take(wire.ProfileEnd())
    assert len(await task) == 1


async def test_who_leaves_ends_it_and_the_next_one_gets_only_its_own() -> None:
    bench = Bench()
    task = await bench.ask(9)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other = await bench.ask(1)
    # The worker had recorded one more before it heard of it.
    for message in (step(1), wire.ProfileEnd(), step(2), wire.ProfileEnd()):
        bench.recording.take(message)
    assert [it.begin_ns for it in await other] == [2]
    assert bench.sent == [wire.Profile(num_steps=n) for n in (9, 0, 1)]


async def test_a_worker_that_dies_and_one_that_can_not_are_told(bench: ClientBench) -> None:
    asking = asyncio.create_task(bench.client.profile(1, 5.0))
    await asyncio.sleep(0)
    bench.die("ended with exit code 1")
    with pytest.raises(WorkerDied):
        await asking
    service = ScriptedService()
    try:
        await service.start()
        await service.until_ready()
        with pytest.raises(UnsupportedFeature, match="can not be recorded"):
            await service.profile(None, 1, 5.0)
    finally:
        await service.aclose()


def test_a_trace_has_ops_within_their_steps() -> None:
    first = step(1000, wire.Span("arrays", "", 1000, 1500), wire.Span("Norm", "a, b", 1500, 3000), num_tokens=7)
    second = step(9000, wire.Span("Norm", "a, b", 9000, 9500))
    trace = json.loads(json.dumps(make_trace("m", [first, second])))
    assert trace["op_seconds"] == {"Norm": 2e-6, "arrays": 0.5e-6}
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    spans = [(event["name"], event["ts"], event["dur"]) for event in complete]
    assert spans == [
        ("step", 0.0, 2.0),
        ("arrays", 0.0, 0.5),
        ("Norm", 0.5, 1.5),
        ("step", 8.0, 0.5),
        ("Norm", 8.0, 0.5),
    ]
    assert complete[0]["args"] == {"step": 0, "sequences": 1, "tokens": 7}
    assert complete[2]["args"] == {"step": 0, "values": "a, b"}
    assert {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"} == {"headway m", "engine"}


def test_no_steps_make_an_empty_trace() -> None:
    assert [event["ph"] for event in make_trace("m", [])["traceEvents"]] == ["M", "M"]
