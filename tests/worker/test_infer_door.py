"""Requests on the native way at a model's processes: who gets one, what is counted, and how each can end. The test
plays the client's connection, the processes and the lease."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

import headway_wire as wire
from headway._native import (
    Door,
    DoorConnection,
    DoorCounts,
    DoorEntry,
    FrameWriter,
    HistogramCounts,
    Outlet,
    WriteQueue,
    infer_codec,
)
from headway.config import InferConfig
from headway.core.infer import InferRequest
from headway.errors import HeadwayError, ShuttingDown, WorkerDied, WorkerStalled
from headway.testing.fake_clock import FakeClock
from headway.worker.channel import Receiver, WorkerEnd
from headway.worker.infer_client import InferClient
from headway.worker.resident import ClientSettings
from headway.worker.stream import StreamLimits
from headway_wire.tensors import from_array

SIGNATURE = wire.Signature(
    task="tensor",
    platform="test",
    can_batch=True,
    inputs=[wire.TensorSpec(name="x", datatype="FP32", shape=[-1])],
)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}).encode()
REQUEST = b"POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass
class FakeTransport:
    """Keeps what is written."""

    written: bytearray = field(default_factory=bytearray)
    is_closed: bool = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


@dataclass
class FakeProcess:
    """A channel whose other end is the test."""

    receiver: Receiver
    pid: int
    transport: FakeTransport = field(default_factory=FakeTransport)
    kills: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frames = FrameWriter(self.transport, -1, lambda: None)  # type: ignore[arg-type]

    def send(self, message: wire.Down) -> None:
        self.frames.write(wire.encode(message))

    def kill(self, how: str) -> None:
        self.kills.append(how)

    async def close(self, grace_s: float) -> None:
        self.receiver.on_end(WorkerEnd("ended with exit code 0"))

    def sent(self) -> list[wire.Down]:
        """All that came since the last call."""
        self.frames.flush()
        payloads = list(wire.FrameReader().feed(bytes(self.transport.written)))
        self.transport.written.clear()
        return [wire.decode_down(payload) for payload in payloads]

    def say(self, *messages: wire.Up) -> None:
        left = [self.receiver.take_plain(wire.encode(message)) for message in messages]
        self.receiver.on_messages([wire.decode_up(payload) for payload in left if payload is not None])

    def answer(self, request: wire.Down, **fields: Any) -> None:
        assert isinstance(request, wire.Infer)
        tensors = [from_array("y", np.asarray([3.0, 4.5], np.float32))]
        self.say(wire.Outputs(**{"request_id": request.request_id, "tensors": tensors, **fields}))


@dataclass
class FakeProtocol:
    """Keeps what goes on in Python."""

    fed: list[bytes] = field(default_factory=list)
    given: list[tuple[bytes, Any]] = field(default_factory=list)
    num_went_on: int = 0

    def feed(self, data: bytes) -> None:
        self.fed.append(data)

    def go_on(self) -> None:
        self.num_went_on += 1

    def answer_in_python(self, request: bytes, outcome: Any, arrived_s: float) -> None:
        self.given.append((request, outcome))


@dataclass
class Caller:
    """A client's connection."""

    door: Door
    queue: WriteQueue
    transport: FakeTransport = field(default_factory=FakeTransport)
    protocol: FakeProtocol = field(default_factory=FakeProtocol)

    def __post_init__(self) -> None:
        self.native = DoorConnection(self.door, Outlet(self.transport, -1), self.protocol)  # type: ignore[arg-type]

    def ask(self, request: bytes = REQUEST) -> bool:
        """Whether it went natively."""
        return self.native.take(request) is None

    def answer(self) -> bytes:
        """What was written to it."""
        self.queue.flush()
        written = bytes(self.transport.written)
        self.transport.written.clear()
        return written


@dataclass
class Bench:
    config: InferConfig
    clock: FakeClock = field(default_factory=FakeClock)
    processes: list[FakeProcess] = field(default_factory=list)
    num_leases: int = 0
    may_lease: bool = True

    def __post_init__(self) -> None:
        settings = ClientSettings(
            limits=StreamLimits(1, 1.0),
            stall_timeout_s=120.0,
            clock=self.clock,
            max_queued=2,
            on_lost=lambda: None,
            on_loading=lambda _: None,
        )
        self.client = InferClient("m", settings, self.config, self._start)
        self.queue = WriteQueue()
        self.seconds = HistogramCounts([1.0])
        self.counts = DoorCounts("/m", self.seconds, self.seconds)
        self.door = Door(
            self.queue,
            lambda: None,
            hosts=(),
            api_keys=(),
            max_body_bytes=2 * len(BODY),
            max_held_bytes=10 * len(REQUEST),
            on_records=lambda: None,
            on_gathering=lambda: None,
        )

    async def _start(self, name: str, receiver: Receiver) -> FakeProcess:
        self.processes.append(FakeProcess(receiver, 100 + len(self.processes)))
        return self.processes[-1]

    def _lease(self) -> bool:
        self.num_leases += self.may_lease
        return self.may_lease

    def caller(self) -> Caller:
        return Caller(self.door, self.queue)

    def num_open(self) -> tuple[int, int, int]:
        plain = self.client.plain
        return plain.num_at_work, plain.num_in_flight, plain.num_open_bytes


async def make(**config: Any) -> Bench:
    bench = Bench(InferConfig(**config))
    await bench.client.start()
    loading = asyncio.create_task(bench.client.load(wire.Load(predictor="x:Y", source="s")))
    await asyncio.sleep(0)
    for process in bench.processes:
        process.say(wire.Ready(info=msgspec.to_builtins(SIGNATURE)))
        process.sent()
    await loading
    bench.client.plain.open(bench._lease, bench.client.dispatch)
    codec = infer_codec(inputs=[("x", "FP32", [-1], False)], outputs=[], name="m", version="1", has_plus=False)
    entry = DoorEntry(counts=bench.counts, model=bench.client.plain, codec=codec, timeout_s=config.get("timeout_s"))
    bench.door.add("/m", entry)
    return bench


async def test_a_request_is_a_message_and_its_answer_an_http_answer() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    (sent,) = bench.processes[0].sent()
    assert isinstance(sent, wire.Infer)
    assert sent.tensors == [wire.Tensor(name="x", datatype="FP32", shape=[2], data=np.float32([1, 2]).tobytes())]
    assert bench.num_open() == (1, 1, 8)
    assert bench.door.num_open == 1
    bench.processes[0].answer(sent)
    head, _, body = caller.answer().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert json.loads(body)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "data": [3.0, 4.5]}]
    assert bench.num_open() == (0, 0, 0)
    assert bench.door.num_open == 0
    assert bench.counts.take()[0] == 1
    assert bench.counts.take()[0] == 0
    assert sum(bench.seconds.in_bucket) == 2  # of HTTP, and of inferences
    assert [(handler, len(id_)) for handler, id_, _ in bench.door.take_records()] == [("/m", 36)]


async def test_both_ways_share_the_processes_and_the_limits() -> None:
    bench = await make(instances=2, concurrency=3)
    request = InferRequest(request_id="r", model="m", tensors=[from_array("x", np.float32([1]))])
    in_python = asyncio.create_task(bench.client.infer(request, lambda _: None))
    await asyncio.sleep(0)
    callers = [bench.caller() for _ in range(3)]
    assert [caller.ask() for caller in callers] == [True, True, False]
    assert [len(process.sent()) for process in bench.processes] == [2, 1]
    assert bench.client.stats()["num_running"] == 3
    await bench.client.close()
    with pytest.raises(HeadwayError):
        await in_python


async def test_what_waits_in_python_goes_before_what_comes_natively() -> None:
    bench = await make(concurrency=1)
    first = bench.caller()
    assert first.ask()
    request = InferRequest(request_id="r", model="m", tensors=[from_array("x", np.float32([1]))])
    waiting = asyncio.create_task(bench.client.infer(request, lambda _: None))
    await asyncio.sleep(0)
    assert not bench.caller().ask()
    (sent,) = bench.processes[0].sent()
    bench.processes[0].answer(sent)
    (second,) = bench.processes[0].sent()
    bench.processes[0].answer(second)
    assert (await waiting).tensors[0].name == "y"
    assert bench.caller().ask()


async def test_without_a_lease_nothing_goes_natively_and_one_is_for_all() -> None:
    bench = await make()
    bench.may_lease = False
    assert not bench.caller().ask()
    bench.may_lease = True
    assert all(bench.caller().ask() for _ in range(3))
    assert bench.num_leases == 1
    for sent in bench.processes[0].sent():
        bench.processes[0].answer(sent)
    assert bench.client.plain.end_lease() == (3, 3)
    assert bench.caller().ask()
    assert bench.num_leases == 2


async def test_a_process_that_dies_gives_its_requests_to_python() -> None:
    bench = await make(instances=2)
    callers = [bench.caller() for _ in range(2)]
    assert all(caller.ask() for caller in callers)
    callers[0].native.take(b"GET / HTTP")  # comes behind it
    bench.processes[0].receiver.on_end(WorkerEnd("was ended by SIGKILL"))
    ((request, outcome),) = callers[0].protocol.given
    assert request == REQUEST + b"GET / HTTP"
    assert isinstance(outcome, WorkerDied)
    assert not callers[0].native.is_busy
    assert callers[1].protocol.given == []
    assert bench.num_open() == (1, 1, 8)
    assert bench.caller().ask()
    assert len(bench.processes[1].sent()) == 2


async def test_an_answer_that_is_not_plain_goes_to_python_with_it() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    (sent,) = bench.processes[0].sent()
    bench.processes[0].answer(sent, tensors=[], error=wire.Error(kind="InvalidRequest", message="no"))
    ((request, outcome),) = caller.protocol.given
    assert request == REQUEST
    assert outcome.error.message == "no"
    assert bench.num_open() == (0, 0, 0)
    assert bench.counts.take()[0] == 0


async def test_what_is_no_answer_at_all_raises_and_nothing_has_changed() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    (sent,) = bench.processes[0].sent()
    broken = msgspec.msgpack.encode({"type": "outputs", "request_id": sent.request_id, "tensors": 5})  # type: ignore[union-attr]
    with pytest.raises(msgspec.DecodeError):
        bench.processes[0].receiver.take_plain(broken)
    assert bench.num_open()[:2] == (1, 1)
    bench.processes[0].receiver.on_end(WorkerEnd("sent what is no message and was killed"))
    assert isinstance(caller.protocol.given[0][1], WorkerDied)


async def test_a_client_that_leaves_is_told_to_the_process_and_its_answer_is_owed() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    (sent,) = bench.processes[0].sent()
    lost = caller.native.lose()
    assert lost is not None
    assert lost[0] is bench.counts
    (abort,) = bench.processes[0].sent()
    assert abort == wire.Abort(request_id=sent.request_id, reason="its caller left")  # type: ignore[union-attr]
    assert bench.num_open() == (1, 1, 8)
    assert bench.door.num_open == 0
    bench.processes[0].answer(sent)
    assert bench.num_open() == (0, 0, 0)
    assert caller.answer() == b""
    assert bench.client.stats()["client_aborts_total"] == 1


async def test_a_shut_down_ends_what_is_open() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    (sent,) = bench.processes[0].sent()
    bench.client.shut_down_requests()
    assert isinstance(caller.protocol.given[0][1], ShuttingDown)
    assert [type(message) for message in bench.processes[0].sent()] == [wire.Abort]
    bench.processes[0].answer(sent)
    assert bench.num_open() == (0, 0, 0)
    assert len(caller.protocol.given) == 1


async def test_a_process_that_makes_no_progress_is_killed() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    bench.client.watch_plain(0.0)
    bench.clock.advance(121)
    assert [how.partition(" for")[0] for how in bench.processes[0].kills] == ["made no progress"]
    bench.processes[0].receiver.on_end(WorkerEnd(bench.processes[0].kills[0]))
    assert isinstance(caller.protocol.given[0][1], WorkerStalled)


async def test_one_that_was_idle_is_not_stalled() -> None:
    bench = await make()
    for _ in range(3):
        caller = bench.caller()
        assert caller.ask()
        bench.client.watch_plain(0.0)
        bench.processes[0].answer(*bench.processes[0].sent())
        bench.client.watch_plain(0.0)
        assert bench.clock.num_timers == 0
        bench.clock.advance(100)
    assert bench.processes[0].kills == []


async def test_what_comes_behind_a_request_waits_for_its_answer() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask(REQUEST + REQUEST[:10])
    assert caller.native.take(REQUEST[10:]) is None
    (sent,) = bench.processes[0].sent()
    bench.processes[0].answer(sent)
    assert caller.protocol.num_went_on == 1
    assert caller.native.is_busy
    assert caller.native.release() == REQUEST
    assert not caller.native.is_busy


async def test_a_connection_that_is_to_end_ends_with_the_answer() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask()
    caller.native.close_after()
    bench.processes[0].answer(*bench.processes[0].sent())
    assert b"\r\nconnection: close\r\n\r\n{" in caller.answer()
    assert caller.transport.is_closed
    assert caller.native.take(REQUEST) is None  # and says nothing more
    assert bench.processes[0].sent() == []


async def test_what_does_not_become_whole_goes_on_in_python() -> None:
    bench = await make()
    caller = bench.caller()
    assert caller.ask(REQUEST[:20])
    assert caller.native.is_gathering
    assert bench.door.expire(60.0)
    assert caller.protocol.fed == []
    assert not bench.door.expire(0.0)
    assert caller.protocol.fed == [REQUEST[:20]]
    assert not caller.native.is_gathering


async def test_a_body_over_the_servers_limit_is_pythons_to_refuse() -> None:
    bench = await make()
    long = BODY + b" " * (len(BODY) + 1)
    request = b"POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(long), long)
    assert not bench.caller().ask(request)
    assert not bench.caller().ask(request[: -len(long)])  # the head says it
    fits = request.replace(b"%d" % len(long), b"%d" % (len(long) - 1))[:-1]
    assert bench.caller().ask(fits)


async def test_more_than_may_be_held_goes_on_in_python() -> None:
    bench = await make(max_batch_size=64)
    bench.client.plain.set_limits(max_at_work=None, max_queued=None, max_open_bytes=1 << 30, num_places=64)
    callers = [bench.caller() for _ in range(12)]
    assert [caller.ask() for caller in callers] == [True] * 10 + [False] * 2
    gathering = bench.caller()
    assert gathering.native.take(REQUEST[:20]) == REQUEST[:20]
    for sent in bench.processes[0].sent():
        bench.processes[0].answer(sent)
    assert gathering.ask(REQUEST[:20])
    assert gathering.native.take(REQUEST[20:]) is None


async def test_when_the_table_is_dropped_what_runs_ends_and_nothing_begins() -> None:
    bench = await make()
    caller, gathering = bench.caller(), bench.caller()
    assert caller.ask()
    assert gathering.ask(REQUEST[:20])
    bench.door.drop()
    assert gathering.native.take(REQUEST[20:]) == REQUEST
    assert bench.caller().native.take(REQUEST) == REQUEST
    bench.processes[0].answer(*bench.processes[0].sent())
    assert caller.answer().startswith(b"HTTP/1.1 200 OK")
