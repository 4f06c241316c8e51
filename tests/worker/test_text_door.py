"""Texts on the native way at an encoder's process: what goes there, what is counted, and how each can end. The test
plays the client's connection, the process and the lease."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.worker.test_infer_door import Caller, FakeProcess

import headway_wire as wire
from headway._native import Door, DoorCounts, DoorEntry, HistogramCounts, WriteQueue, text_codec
from headway.errors import QueueFull, ShuttingDown, WorkerDied, WorkerStalled
from headway.testing.fake_clock import FakeClock
from headway.worker.channel import WorkerEnd
from headway.worker.client import WorkerClient
from headway.worker.embed_prompt import PreparedText
from headway.worker.stream import StreamLimits

VECTOR = np.float32([0.5, -2]).tobytes()
ERROR = wire.Error(kind="ModelNotReady", message="later")


def post(value: Any) -> bytes:
    body = json.dumps({"model_id": "m", "input_data": value}).encode()
    return b"POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


REQUEST = post("two words")


@dataclass
class Bench:
    clock: FakeClock = field(default_factory=FakeClock)
    may_lease: bool = True

    def __post_init__(self) -> None:
        self.client = WorkerClient(
            "m", limits=StreamLimits(1, 1.0), stall_timeout_s=120.0, clock=self.clock, max_queued=2
        )
        self.process = FakeProcess(self.client, 100)
        self.client.attach(self.process)
        assert self.client.plain is None
        self.process.say(wire.Ready(info={"max_model_len": 64, "max_num_seqs": 1, "takes_texts": True}))
        assert self.client.plain is not None
        self.client.plain.open(lambda: self.may_lease, self.client.dispatch)
        self.queue = WriteQueue()
        self.seconds = HistogramCounts([1.0])
        self.counts = DoorCounts("/m", self.seconds, self.seconds)
        codec = text_codec(prompt="query: ", name="m", version="1")
        self.door = Door(
            self.queue,
            lambda: None,
            hosts=(),
            api_keys=(),
            max_body_bytes=1 << 20,
            max_held_bytes=1 << 20,
            on_records=lambda: None,
            on_gathering=lambda: None,
        )
        self.door.add("/m", DoorEntry(counts=self.counts, model=self.client.plain, codec=codec, timeout_s=None))

    def caller(self) -> Caller:
        return Caller(self.door, self.queue)

    def ask(self) -> tuple[Caller, wire.SubmitText]:
        caller = self.caller()
        assert caller.ask(REQUEST)
        (sent,) = self.process.sent()
        assert isinstance(sent, wire.SubmitText)
        return caller, sent


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_text_goes_as_it_is_and_its_vector_is_an_http_answer(bench: Bench) -> None:
    caller, sent = bench.ask()
    assert sent.text == "query: two words"
    assert bench.client.num_open == 1
    assert bench.client.stats()["client_open_requests"] == 1
    bench.process.say(wire.Step(num_tokens=4), wire.Embedding(request_id=sent.request_id, data=VECTOR, num_tokens=4))
    head, _, body = caller.answer().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(body) == {"model_id": "m", "model_version": "1", "predictions": [[0.5, -2.0]]}
    assert bench.client.num_open == 0
    num_answered, _, _, num_tokens = bench.counts.take()
    assert (num_answered, num_tokens) == (1, 4)
    assert bench.counts.take()[3] == 0


@pytest.mark.parametrize("value", [["a", "b"], "", [], 3, "a" * 16385], ids=repr)
async def test_what_is_not_one_short_text_takes_the_python_way(bench: Bench, value: Any) -> None:
    assert not bench.caller().ask(post(value))
    assert bench.process.sent() == []


async def test_without_a_lease_it_takes_the_python_way(bench: Bench) -> None:
    bench.may_lease = False
    assert not bench.caller().ask(REQUEST)
    assert bench.client.num_open == 0


async def test_what_is_refused_is_asked_anew_in_python(bench: Bench) -> None:
    caller, sent = bench.ask()
    bench.process.say(wire.Refused(request_id=sent.request_id, error=ERROR))
    assert caller.protocol.given == [(REQUEST, None)]
    assert bench.client.num_open == 0
    assert bench.counts.take()[0] == 0


async def test_a_client_that_leaves_has_its_text_aborted(bench: Bench) -> None:
    caller, sent = bench.ask()
    assert caller.native.lose() is not None
    assert bench.process.sent() == [wire.Abort(request_id=sent.request_id, reason="disconnect")]
    assert bench.client.num_open == 1  # the process owes its end
    bench.process.say(wire.Refused(request_id=sent.request_id, error=ERROR))
    assert bench.client.num_open == 0
    assert caller.protocol.given == []
    assert bench.client.stats()["client_aborts_total"] == 1


async def test_both_ways_share_the_limit_of_what_may_wait(bench: Bench) -> None:
    callers = [bench.ask() for _ in range(2)]
    assert not bench.caller().ask(REQUEST)  # whether it has to wait is for Python to say
    bench.client.check_room(1)
    with pytest.raises(QueueFull, match="with this request 3 would wait"):
        bench.client.check_room(2)
    for caller, sent in callers:
        bench.process.say(wire.Embedding(request_id=sent.request_id, data=VECTOR))
        assert caller.answer()
    task = asyncio.create_task(bench.client.embed("e", [PreparedText((1,))] * 2, lambda _: None))
    await asyncio.sleep(0)
    bench.process.sent()
    assert not bench.caller().ask(REQUEST)
    bench.process.say(*(wire.Embedding(request_id=f"e-{index}", data=VECTOR) for index in range(2)))
    assert await task == [VECTOR, VECTOR]
    bench.ask()


async def test_a_worker_that_dies_or_is_ended_is_told(bench: Bench) -> None:
    caller, _ = bench.ask()
    bench.client.shut_down_requests()
    assert isinstance(caller.protocol.given[0][1], ShuttingDown)
    assert isinstance(bench.process.sent()[0], wire.Abort)
    other, _ = bench.ask()
    bench.client.on_end(WorkerEnd("was ended by SIGKILL"))
    assert isinstance(other.protocol.given[0][1], WorkerDied)
    assert bench.client.num_open == 0
    assert not bench.caller().ask(REQUEST)


async def test_a_worker_that_stalls_is_ended(bench: Bench) -> None:
    caller, _ = bench.ask()
    bench.client.watch_plain(0.0)
    bench.clock.advance(119)
    assert not bench.process.kills
    bench.clock.advance(2)
    (how,) = bench.process.kills
    bench.client.on_end(WorkerEnd(how))
    assert isinstance(caller.protocol.given[0][1], WorkerStalled)


async def test_an_idle_worker_does_not_stall(bench: Bench) -> None:
    _, sent = bench.ask()
    bench.client.watch_plain(0.0)
    bench.clock.advance(60)
    bench.process.say(wire.Embedding(request_id=sent.request_id, data=VECTOR))
    bench.client.watch_plain(0.0)
    bench.clock.advance(110)
    _, sent = bench.ask()  # what was there before does not count
    bench.client.watch_plain(0.0)
    bench.clock.advance(119)
    assert not bench.process.kills
    bench.process.say(wire.Embedding(request_id=sent.request_id, data=VECTOR))
    bench.clock.advance(500)
    assert not bench.process.kills
