"""InferClient: the parent's side of a model that takes tensors: its processes, and who of them computes what.

All on the event loop's thread. A request is *open* from its coming until its process has answered it, even if its
caller left long before: only then the lease ends.
1. Checked against the signature.   2. Over `concurrency` it waits here, in order of arrival; at most so many wait.
3. It goes to the ready process with the fewest open requests.
4. Its caller leaves, or its time is over: what waits here is gone; what is in a process gets an Abort.
5. A process dies: its requests fail. 5a. Others are ready: it is started again beside them, later after each failure.
   5b. None is: this client has ended, and the pool decides.
"""

import asyncio
import itertools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import msgspec

import headway_wire as wire
from headway._native import PlainModel
from headway.config import InferConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InternalError,
    InvalidRequest,
    PayloadTooLarge,
    QueueFull,
    ShuttingDown,
)
from headway.worker.channel import Channel, Receiver
from headway.worker.infer_check import check_infer
from headway.worker.infer_instance import Call, Instance
from headway.worker.resident import ClientSettings, ModelGone

logger = logging.getLogger(__name__)

StartProcess = Callable[[str, Receiver], Awaitable[Channel]]
"""Starts a process that waits for its Load. Raises OSError."""

MAX_OPEN_BYTES = 1 << 30
"""Of the inputs of all open requests; one alone is always taken."""
RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 15.0, 60.0)
"""After the n-th failure in a row of a process that has others beside it; the last one repeats."""


class InferClient:
    """A ResidentClient (worker/resident). start(), then load(), then infer()."""

    def __init__(self, name: str, settings: ClientSettings, config: InferConfig, start: StartProcess) -> None:
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        self.signature = wire.Signature(task="", platform="")
        """What the model takes and gives, once it is loaded."""
        self.plain = PlainModel()
        """What is open, here and on the native way (server/native_door): the limits are of both."""
        self._settings = settings
        self._config = config
        self._start_process = start
        self._load_message: wire.Load | None = None
        self._instances: list[Instance] = []
        self._waiting: deque[Call] = deque()
        self._ids = itertools.count(1)
        self._totals: dict[str, float] = {}
        """Counters of the processes that are gone."""
        self._num_aborts = 0
        self._num_failures = 0
        """In a row, of processes that died beside others."""
        self._restarts: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def start(self) -> None:
        """Starts the processes; each waits for its Load. Raises OSError; then none is left."""
        try:
            for _ in range(self._config.instances):
                self._instances.append(await self._start_instance())
        except BaseException:
            await self.close(0.0)
            raise

    async def load(self, message: wire.Load) -> wire.Ready:
        """Loads all instances at once and waits for them. Raises what the first failed with."""
        self._load_message = message
        for instance in self._instances:
            instance.load(message)
        ready = await asyncio.gather(*(asyncio.shield(instance.ready) for instance in self._instances))
        self.signature = read_signature(ready[0])
        self.plain.set_limits(
            max_at_work=self._config.concurrency,
            max_queued=self._settings.max_queued,
            max_open_bytes=MAX_OPEN_BYTES,
            num_places=self._num_places,
        )
        return ready[0]

    async def infer(
        self, request: InferRequest, on_settled: Callable[[bool], None], *, deadline: float | None = None
    ) -> Inferred:
        """The model's answer.

        `on_settled` is called once, whatever happens, when the model owes nothing more for the request; its argument
        says whether the model did what was asked. Raises InvalidRequest, QueueFull, DeadlineExceeded at `deadline` of
        the clock, WorkerDied, ModelGone, or what the model raised.
        """
        if self.ended.done():
            on_settled(False)
            raise ModelGone
        call = Call(_message(request, str(next(self._ids))), on_settled, _num_bytes(request))
        try:
            check_infer(self.signature, call.request)
            self._check_room(call)
        except HeadwayError:
            on_settled(False)
            raise
        self.plain.num_open_bytes += call.num_bytes
        self._waiting.append(call)
        self.dispatch()
        if deadline is not None and not call.answer.done():
            call.timer = self._settings.clock.call_at(deadline, lambda: self._expire(call))
        try:
            return make_inferred(self.name, await call.answer)
        except asyncio.CancelledError:
            self._drop(call, "its caller left")
            raise
        finally:
            if call.timer is not None:
                call.timer.cancel()

    def stats(self) -> dict[str, float]:
        """Sums over the processes, those that are gone too, and the numbers that only this side knows."""
        values = dict(self._totals)
        for instance in self._instances:
            _add(values, instance.stats)
        num_open = len(self._waiting) + self.plain.num_at_work
        return values | {
            "num_running": float(self.plain.num_at_work),
            "num_waiting": float(len(self._waiting)),
            "client_open_requests": float(num_open),
            "client_aborts_total": float(self._num_aborts),
            "infer_instances": float(sum(instance.is_ready for instance in self._instances)),
        }

    def shut_down_requests(self) -> None:
        """Ends every open request with ShuttingDown."""
        error = ShuttingDown("the server shut down before the answer was there: try another one, or later")
        for call in [*self._waiting, *(call for it in self._instances for call in it.calls.values())]:
            call.fail(error)
            self._drop(call, "shutdown")
        for instance in self._instances:
            instance.end_plain(error, math.inf)

    def watch_plain(self, now_s: float) -> None:
        """Has to be called several times a second while requests are on the native way: sees to their deadlines and to
        stalled processes. `now_s`: of the system's monotonic clock."""
        for instance in self._instances:
            instance.watch_progress()
            # Each request has its own: a time-out may be changed while the model stays.
            instance.end_plain(self._deadline_error("it was at the model"), now_s)

    async def close(self, grace_s: float = 2.0) -> None:
        """Ends the processes; open requests end with ShuttingDown. Returns when they are gone."""
        self._is_closing = True
        self.shut_down_requests()
        self.plain.close()
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await asyncio.gather(*(instance.close(grace_s) for instance in self._instances))

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes."""
        channels = [instance.channel for instance in self._instances if not instance.is_gone]
        return tuple(channel.pid for channel in channels if channel is not None and channel.pid is not None)

    # infer_instance.Owner

    def on_loading(self, instance: Instance, message: wire.Loading) -> None:
        """The first process tells the phases for all: they load at the same time."""
        if self._instances and instance is self._instances[0] and not self.signature.task:
            self._settings.on_loading(message)

    def on_answered(self, call: Call, *, has_served: bool) -> None:
        """There is a place for the next."""
        self.plain.num_at_work -= 1
        if has_served:
            self._num_failures = 0
        self._settle(call, has_served)
        self.dispatch()

    def on_plain_abort(self) -> None:
        """It is counted."""
        self._num_aborts += 1

    def on_lost(self, instance: Instance, error: HeadwayError) -> None:
        """Case 5."""
        _add(self._totals, instance.stats)
        instance.stats = {}
        if self.ended.done():
            return
        if not any(it.is_ready for it in self._instances):
            self._end(error)
        elif not self._is_closing and instance.was_ready:
            self._restart(instance)

    # within

    async def _start_instance(self) -> Instance:
        settings = self._settings
        instance = Instance(
            self.name, self, model=self.plain, clock=settings.clock, stall_timeout_s=settings.stall_timeout_s
        )
        instance.attach(await self._start_process(self.name, instance))
        return instance

    def _check_room(self, call: Call) -> None:
        """Raises QueueFull."""
        num_open = len(self._waiting) + self.plain.num_at_work
        max_queued = self._settings.max_queued
        if max_queued is not None and num_open + 1 - self._num_places > max_queued and num_open:
            raise QueueFull(
                f"{num_open} requests are open at model {self.name}, {self._num_places} of them at work; at most"
                f" {max_queued} may wait (--max-queued-requests): try again later",
                retry_after_s=1.0,
            )
        if num_open and self.plain.num_open_bytes + call.num_bytes > MAX_OPEN_BYTES:
            raise QueueFull(
                f"inputs of {self.plain.num_open_bytes} bytes are open at model {self.name}, and this one has"
                f" {call.num_bytes}; at most {MAX_OPEN_BYTES} may be: try again later",
                retry_after_s=1.0,
            )

    @property
    def _num_places(self) -> int:
        """Requests that are at work at once, where so many are there."""
        batch = self._config.max_batch_size if self.signature.can_batch else 1
        places = self._config.instances * batch
        return places if self._config.concurrency is None else self._config.concurrency

    def dispatch(self) -> None:
        """There may be places for those that wait."""
        self._dispatch()
        self.plain.num_waiting = len(self._waiting)

    def _dispatch(self) -> None:
        """Cases 2 and 3."""
        limit = self._config.concurrency
        while self._waiting and (limit is None or self.plain.num_at_work < limit):
            ready = [instance for instance in self._instances if instance.is_ready]
            if not ready:
                return
            call = self._waiting.popleft()
            try:
                least = ready[0] if len(ready) == 1 else min(ready, key=lambda instance: instance.num_open)
                least.send(call)
                self.plain.num_at_work += 1
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                kind = PayloadTooLarge if isinstance(error, wire.FrameTooLarge) else InvalidRequest
                call.fail(kind(f"the request can not be sent to the model's process: {error}"))
                self._settle(call, has_served=False)

    def _settle(self, call: Call, has_served: bool) -> None:
        self.plain.num_open_bytes -= call.num_bytes
        call.on_settled(has_served)

    def _expire(self, call: Call) -> None:
        call.fail(self._deadline_error("it waited for its turn" if call.instance is None else "it was at the model"))
        self._drop(call, "its time-out is over")

    def _deadline_error(self, where: str) -> DeadlineExceeded:
        return DeadlineExceeded(f"model {self.name} did not answer within the request's time-out: {where}")

    def _drop(self, call: Call, reason: str) -> None:
        """Case 4. The caller has been told, or is gone."""
        if call.instance is None:
            if call in self._waiting:
                self._waiting.remove(call)
                self.plain.num_waiting = len(self._waiting)
                self._settle(call, has_served=False)
        elif call.request.request_id in call.instance.calls and not call.is_aborted:
            self._num_aborts += 1
            call.instance.abort(call, reason)

    def _end(self, error: HeadwayError) -> None:
        """Case 5b."""
        self._settings.on_lost()
        while self._waiting:
            call = self._waiting.popleft()
            call.fail(ModelGone())
            self._settle(call, has_served=False)
        self.plain.num_waiting = 0
        self.ended.set_result(error)

    def _restart(self, instance: Instance) -> None:
        """Case 5a."""
        self._num_failures += 1
        delay_s = RESTART_DELAYS_S[min(self._num_failures, len(RESTART_DELAYS_S)) - 1]
        clock = self._settings.clock
        clock.call_at(clock.now() + delay_s, lambda: self._begin_revival(instance))

    def _begin_revival(self, instance: Instance) -> None:
        if self._is_closing or self.ended.done():
            return
        task = asyncio.create_task(self._revive(instance))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _revive(self, lost: Instance) -> None:
        """Another process in the place of one that died."""
        try:
            instance = await self._start_instance()
            self._instances[self._instances.index(lost)] = lost = instance
            if self._load_message is not None:
                instance.load(self._load_message)
            await asyncio.shield(instance.ready)
        except (HeadwayError, OSError) as error:
            logger.error("%s: an instance can not be started again: %s", self.name, error)
            if not self.ended.done():
                self._restart(lost)
        else:
            logger.info("%s: an instance was started again beside the others", self.name)
            self.dispatch()


def read_signature(ready: wire.Ready) -> wire.Signature:
    """What a process told when it was ready. Raises InternalError if it is none."""
    try:
        return msgspec.convert(ready.info, wire.Signature)
    except msgspec.ValidationError as error:
        raise InternalError(f"the model's process told no signature: {error}") from error


def make_inferred(model: str, outputs: wire.Outputs) -> Inferred:
    """A process's answer that is no error."""
    return Inferred(model=model, version="", tensors=outputs.tensors, value=outputs.value, labels=outputs.labels)


def _message(request: InferRequest, wire_id: str) -> wire.Infer:
    return wire.Infer(
        request_id=wire_id,
        tensors=list(request.tensors),
        value=request.value,
        parameters=dict(request.parameters),
        outputs=list(request.outputs),
    )


def _num_bytes(request: InferRequest) -> int:
    """Of what a request holds, where it can be told at once."""
    num_bytes = len(request.value) if isinstance(request.value, bytes | str) else 0
    for tensor in request.tensors:
        num_bytes += len(tensor.data)
    return num_bytes


def _add(totals: dict[str, float], stats: Mapping[str, float]) -> None:
    """Adds the counters (*_total) of `stats`."""
    for name, value in stats.items():
        if name.endswith("_total"):
            totals[name] = totals.get(name, 0.0) + value
