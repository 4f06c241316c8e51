"""The client of a model of tensors, over processes that the test plays: who computes what, who waits, who is told."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

import headway_wire as wire
from headway.config import InferConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    ShuttingDown,
    WorkerDied,
    WorkerStalled,
)
from headway.testing.fake_clock import FakeClock
from headway.worker.channel import Receiver, WorkerEnd
from headway.worker.infer_client import RESTART_DELAYS_S, InferClient
from headway.worker.resident import ClientSettings, ModelGone
from headway.worker.stream import StreamLimits

SIGNATURE = wire.Signature(task="tensor", platform="test", can_batch=True)


@dataclass
class FakeProcess:
    """A channel whose other end is the test."""

    receiver: Receiver
    pid: int
    sent: list[wire.Down] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    is_gone: bool = False

    def send(self, message: wire.Down) -> None:
        if not self.is_gone:
            self.sent.append(wire.decode_down(wire.encode(message)))

    def kill(self, how: str) -> None:
        self.kills.append(how)

    async def close(self, grace_s: float) -> None:
        self.die("ended with exit code 0")

    def say(self, *messages: wire.Up) -> None:
        self.receiver.on_messages([wire.decode_up(wire.encode(message)) for message in messages])

    def be_ready(self) -> None:
        self.say(wire.Ready(info=msgspec.to_builtins(SIGNATURE)))

    def die(self, how: str = "was ended by SIGKILL") -> None:
        if not self.is_gone:
            self.is_gone = True
            self.receiver.on_end(WorkerEnd(how))

    def open_values(self) -> list[Any]:
        """Of the requests that came, in order."""
        return [message.value for message in self.sent if isinstance(message, wire.Infer)]

    def answer(self, value: Any, **fields: Any) -> None:
        """The request that has this value; its answer is the value."""
        (request,) = [it for it in self.sent if isinstance(it, wire.Infer) and it.value == value]
        self.say(wire.Outputs(request_id=request.request_id, value=value, **fields))


@dataclass
class Bench:
    config: InferConfig = field(default_factory=InferConfig)
    max_queued: int | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    processes: list[FakeProcess] = field(default_factory=list)
    settled: list[tuple[Any, bool]] = field(default_factory=list)
    num_lost: int = 0
    phases: list[str] = field(default_factory=list)
    fails_to_start: bool = False
    client: InferClient = field(init=False)

    def __post_init__(self) -> None:
        settings = ClientSettings(
            limits=StreamLimits(1, 1.0),
            stall_timeout_s=120.0,
            clock=self.clock,
            max_queued=self.max_queued,
            on_lost=self._lose,
            on_loading=lambda loading: self.phases.append(loading.phase),
        )
        self.client = InferClient("m", settings, self.config, self._start)

    async def _start(self, name: str, receiver: Receiver) -> FakeProcess:
        if self.fails_to_start:
            raise OSError("no more processes")
        self.processes.append(FakeProcess(receiver, 100 + len(self.processes)))
        return self.processes[-1]

    def _lose(self) -> None:
        self.num_lost += 1

    async def load(self) -> wire.Ready:
        await self.client.start()
        loading = asyncio.create_task(self.client.load(wire.Load(predictor="x:Y", source="s")))
        await settle()
        for process in self.processes:
            process.be_ready()
        return await loading

    def ask(self, value: Any, timeout_s: float | None = None) -> "asyncio.Task[Inferred]":
        deadline = None if timeout_s is None else self.clock.now() + timeout_s
        request = InferRequest(request_id="r", model="m", value=value)
        return asyncio.create_task(self.client.infer(request, self._settle(value), deadline=deadline))

    def _settle(self, value: Any) -> Callable[[bool], None]:
        return lambda has_served: self.settled.append((value, has_served))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def make(**fields: Any) -> Bench:
    config = {name: fields.pop(name) for name in list(fields) if name not in ("max_queued",)}
    bench = Bench(InferConfig(**config), **fields)
    await bench.load()
    return bench


async def test_all_instances_load_at_once_and_the_first_tells_its_phases() -> None:
    bench = Bench(InferConfig(instances=2))
    await bench.client.start()
    loading = asyncio.create_task(bench.client.load(wire.Load(predictor="x:Y", source="s")))
    await settle()
    for process in bench.processes:
        process.say(wire.Loading(phase=f"read {process.pid}"))
    bench.processes[0].be_ready()
    await settle()
    assert not loading.done()
    bench.processes[1].be_ready()
    assert (await loading).info["task"] == "tensor"
    assert bench.phases == ["read 100"]
    assert bench.client.pids == (100, 101)
    assert bench.client.signature == SIGNATURE
    assert [len(process.sent) for process in bench.processes] == [1, 1]


async def test_a_load_that_fails_is_raised() -> None:
    bench = Bench(InferConfig(instances=2))
    await bench.client.start()
    loading = asyncio.create_task(bench.client.load(wire.Load(predictor="x:Y", source="s")))
    await settle()
    bench.processes[0].be_ready()
    bench.processes[1].say(wire.Failed(error=wire.Error(kind="OutOfMemory", message="2 GB")))
    with pytest.raises(OutOfMemory, match="2 GB"):
        await loading
    await bench.client.close()


async def test_a_request_goes_to_the_process_with_the_fewest() -> None:
    bench = await make(instances=2)
    tasks = [bench.ask(value) for value in "abc"]
    await settle()
    assert [process.open_values() for process in bench.processes] == [["a", "c"], ["b"]]
    bench.processes[0].answer("a")
    bench.processes[0].answer("c")
    tasks.append(bench.ask("d"))
    await settle()
    assert bench.processes[0].open_values() == ["a", "c", "d"]
    bench.processes[0].answer("d", labels=["no", "yes"])
    bench.processes[1].answer("b")
    answers = await asyncio.gather(*tasks)
    assert [answer.value for answer in answers] == ["a", "b", "c", "d"]
    assert answers[3].labels == ["no", "yes"]
    assert sorted(bench.settled) == [(value, True) for value in "abcd"]


async def test_over_the_concurrency_they_wait_in_order_and_only_so_many() -> None:
    bench = await make(concurrency=2, max_queued=1)
    tasks = [bench.ask(value) for value in "abc"]
    await settle()
    (process,) = bench.processes
    assert process.open_values() == ["a", "b"]
    assert bench.client.stats() == {
        "num_running": 2.0,
        "num_waiting": 1.0,
        "client_open_requests": 3.0,
        "client_aborts_total": 0.0,
        "infer_instances": 1.0,
    }
    with pytest.raises(
        QueueFull, match="3 requests are open at model m, 2 of them at work; at most 1 may wait"
    ) as full:
        await bench.ask("d")
    assert full.value.retry_after_s == 1.0
    assert bench.settled == [("d", False)]
    process.answer("b")
    await settle()
    assert process.open_values() == ["a", "b", "c"]
    process.answer("a")
    process.answer("c")
    assert [answer.value for answer in await asyncio.gather(*tasks)] == ["a", "b", "c"]


async def test_what_is_wrong_is_refused_here_and_what_can_not_be_sent_too() -> None:
    bench = await make()
    tensor = wire.Tensor(name="x", datatype="FP32", shape=[1], data=bytes(4))
    with pytest.raises(HeadwayError, match="takes no tensors"):
        await bench.client.infer(InferRequest(request_id="1", model="m", tensors=[tensor]), bench._settle("t"))
    with pytest.raises(InvalidRequest, match="can not be sent"):
        await bench.ask(1 << 80)
    assert bench.processes[0].open_values() == []
    assert bench.settled == [("t", False), (1 << 80, False)]
    assert bench.client.stats()["client_open_requests"] == 0


async def test_the_lease_of_a_caller_that_left_ends_with_the_model_s_answer() -> None:
    bench = await make()
    task = bench.ask("a")
    await settle()
    task.cancel()
    await settle()
    (process,) = bench.processes
    abort = process.sent[-1]
    assert isinstance(abort, wire.Abort)
    assert abort.request_id == process.sent[1].request_id  # type: ignore[union-attr]
    assert bench.settled == []
    process.answer("a")
    assert bench.settled == [("a", True)]


async def test_who_leaves_while_it_waits_here_is_gone_at_once() -> None:
    bench = await make(concurrency=1)
    first, second = bench.ask("a"), bench.ask("b")
    await settle()
    second.cancel()
    await settle()
    assert bench.settled == [("b", False)]
    bench.processes[0].answer("a")
    await first
    assert bench.processes[0].open_values() == ["a"]


async def test_at_its_deadline_a_request_fails_wherever_it_is() -> None:
    bench = await make(concurrency=1)
    at_work, waiting = bench.ask("a", 5.0), bench.ask("b", 3.0)
    await settle()
    bench.clock.advance(3.0)
    with pytest.raises(DeadlineExceeded, match="it waited for its turn"):
        await waiting
    assert bench.settled == [("b", False)]
    bench.clock.advance(2.0)
    with pytest.raises(DeadlineExceeded, match="it was at the model"):
        await at_work
    assert isinstance(bench.processes[0].sent[-1], wire.Abort)
    bench.processes[0].answer("a")
    assert bench.settled == [("b", False), ("a", True)]
    assert bench.clock.num_timers == 0


async def test_what_the_model_raised_is_raised() -> None:
    bench = await make()
    task = bench.ask("a")
    await settle()
    bench.processes[0].answer("a", error=wire.Error(kind="InvalidRequest", message="no such city", param="input_data"))
    with pytest.raises(InvalidRequest, match="no such city") as caught:
        await task
    assert caught.value.param == "input_data"
    assert bench.settled == [("a", True)]


async def test_one_process_of_two_that_dies_is_started_again_beside_the_other() -> None:
    bench = await make(instances=2)
    tasks = [bench.ask(value) for value in "ab"]
    await settle()
    bench.processes[0].say(wire.Stats(values={"infer_requests_total": 7.0, "infer_max_batch_seconds": 2.0}))
    bench.processes[0].die()
    with pytest.raises(WorkerDied, match="was ended by SIGKILL"):
        await tasks[0]
    assert bench.num_lost == 0
    assert bench.client.pids == (101,)
    assert bench.client.stats()["infer_requests_total"] == 7.0
    bench.clock.advance(RESTART_DELAYS_S[0])
    await settle()
    assert len(bench.processes) == 3
    assert isinstance(bench.processes[2].sent[0], wire.Load)
    tasks.append(bench.ask("c"))
    await settle()
    assert bench.processes[1].open_values() == ["b", "c"], "what still loads is asked nothing"
    bench.processes[2].be_ready()
    tasks.append(bench.ask("d"))
    await settle()
    assert bench.processes[2].open_values() == ["d"]
    for process, value in ((1, "b"), (1, "c"), (2, "d")):
        bench.processes[process].answer(value)
    assert [answer.value for answer in await asyncio.gather(*tasks[1:])] == ["b", "c", "d"]
    bench.processes[2].say(wire.Stats(values={"infer_requests_total": 1.0}))
    assert bench.client.stats()["infer_requests_total"] == 8.0


async def test_each_failure_in_a_row_waits_longer_and_an_answer_forgets_them() -> None:
    bench = await make(instances=2)
    delays = list(RESTART_DELAYS_S[:3])
    bench.processes[0].die()
    for number, delay_s in enumerate(delays):
        bench.clock.advance(delay_s - 0.01 if delay_s else 0.0)
        await settle()
        assert len(bench.processes) == 2 + number + (delay_s == 0)
        bench.clock.advance(0.01)
        await settle()
        assert len(bench.processes) == 3 + number
        bench.processes[-1].say(wire.Failed(error=wire.Error(kind="ModelError", message="no file")))
        await settle()
        bench.processes[-1].die("ended with exit code 1")
        await settle()
    assert bench.num_lost == 0
    task = bench.ask("a")
    await settle()
    bench.processes[1].answer("a")
    await task
    bench.clock.advance(RESTART_DELAYS_S[3])
    await settle()
    bench.processes[-1].be_ready()
    bench.processes[-1].die()
    bench.clock.advance(0.0)
    await settle()
    assert len(bench.processes) == 7


async def test_a_process_that_can_not_be_started_is_tried_again() -> None:
    bench = await make(instances=2)
    bench.fails_to_start = True
    bench.processes[0].die()
    bench.clock.advance(0.0)
    await settle()
    bench.fails_to_start = False
    bench.clock.advance(RESTART_DELAYS_S[1])
    await settle()
    assert len(bench.processes) == 3


async def test_the_last_process_s_death_is_the_model_s() -> None:
    bench = await make(concurrency=1)
    at_work, waiting = bench.ask("a"), bench.ask("b")
    await settle()
    bench.processes[0].die()
    with pytest.raises(WorkerDied):
        await at_work
    with pytest.raises(ModelGone):
        await waiting
    assert bench.num_lost == 1
    assert isinstance(bench.client.ended.result(), WorkerDied)
    with pytest.raises(ModelGone):
        await bench.ask("c")
    assert bench.settled == [("b", False), ("a", False), ("c", False)]
    bench.clock.advance(100.0)
    await settle()
    assert len(bench.processes) == 1
    await bench.client.close()


async def test_a_process_without_progress_is_killed_but_not_before_ten_times_its_longest_batch() -> None:
    bench = await make()
    (process,) = bench.processes
    task = bench.ask("a")
    await settle()
    bench.clock.advance(119.0)
    process.say(wire.Stats(values={"infer_max_batch_seconds": 20.0}))
    bench.clock.advance(199.0)
    assert process.kills == []
    bench.clock.advance(1.0)
    assert process.kills == ["made no progress for 200 s and was killed"]
    process.die(process.kills[0])
    with pytest.raises(WorkerStalled):
        await task


async def test_an_idle_process_is_never_stalled_and_a_sleep_of_ours_is_none_of_its() -> None:
    bench = await make()
    task = bench.ask("a")
    await settle()
    bench.processes[0].answer("a")
    await task
    assert bench.clock.num_timers == 0
    bench.clock.advance(1000.0)
    assert bench.processes[0].kills == []


async def test_closing_ends_open_requests_with_words_and_waits_for_the_processes() -> None:
    bench = await make(instances=2, concurrency=1)
    tasks = [bench.ask("a"), bench.ask("b")]
    await settle()
    await bench.client.close()
    for task in tasks:
        with pytest.raises(ShuttingDown):
            await task
    assert all(process.is_gone for process in bench.processes)
    assert sorted(bench.settled) == [("a", False), ("b", False)]
    assert bench.client.ended.done()


async def test_too_many_bytes_of_inputs_are_refused_but_one_alone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.worker.infer_client.MAX_OPEN_BYTES", 100)
    bench = await make()
    task = bench.ask(b"x" * 101)
    await settle()
    with pytest.raises(QueueFull, match="inputs of 101 bytes are open at model m, and this one has 5; at most 100"):
        await bench.ask(b"12345")
    bench.processes[0].answer(b"x" * 101)
    await task
    later = bench.ask(b"12345")
    await settle()
    bench.processes[0].answer(b"12345")
    await later
