"""Instance: one process of a model that takes tensors, and the requests that it owes an answer. Told by its channel."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import headway_wire as wire
from headway._native import PlainInstance, PlainModel
from headway.errors import HeadwayError, WorkerDied, WorkerStalled, from_wire
from headway.observe.clock import Clock, Timer
from headway.worker.channel import Channel, FramedChannel, WorkerEnd
from headway.worker.resident import ModelGone
from headway.worker.watch import PATIENCE, StallWatch

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """A request, from its coming to its model's last word about it."""

    request: wire.Infer
    on_settled: Callable[[bool], None]
    num_bytes: int
    """Of its tensors and its value, roughly."""
    answer: "asyncio.Future[wire.Outputs]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    instance: "Instance | None" = None
    """Where it is; None: it waits for a place."""
    is_aborted: bool = False
    timer: Timer | None = None

    def fail(self, error: HeadwayError | ModelGone) -> None:
        """For whoever waits for it; after the answer: nothing."""
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # nobody may wait any more


class Owner(Protocol):
    """Who an instance tells."""

    def on_loading(self, instance: "Instance", message: wire.Loading) -> None:
        """A phase of its load."""
        ...

    def on_answered(self, call: Call, *, has_served: bool) -> None:
        """The instance owes nothing more for it; its caller has been told."""
        ...

    def on_plain_abort(self) -> None:
        """Nobody waits any more for the answer to a request on the native way."""
        ...

    def on_lost(self, instance: "Instance", error: HeadwayError) -> None:
        """Its process is gone; told before those who wait for its answers hear of it."""
        ...


class Instance:
    """A receiver of its channel (worker/channel.Receiver). attach() the channel, then load(), then send().

    Beside the calls there may be requests on the native way (server/native_door): `plain` knows them.
    """

    def __init__(self, name: str, owner: Owner, *, model: PlainModel, clock: Clock, stall_timeout_s: float) -> None:
        self.name = name
        self.ready: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self.calls: dict[str, Call] = {}
        self.stats: dict[str, float] = {}
        self.channel: Channel | None = None
        self.plain: PlainInstance | None = None
        """Once there is a channel."""
        self.is_gone = False
        self.is_closing = False
        self.was_ready = False
        """Its load succeeded."""
        self._owner = owner
        self._model = model
        self._stall_timeout_s = stall_timeout_s
        self._failure: HeadwayError | None = None
        self._is_stalled = False
        self._stall_watch = StallWatch(clock, self._stall_limit_s, lambda: self.num_open > 0, self._end_stalled)

    @property
    def is_ready(self) -> bool:
        """It takes requests."""
        return not self.is_gone and self.was_ready

    @property
    def num_open(self) -> int:
        """Requests that it owes an answer."""
        return len(self.calls) if self.plain is None else self.plain.num_open

    def attach(self, channel: Channel) -> None:
        """Tells, once, what carries its messages."""
        frames = channel.frames if isinstance(channel, FramedChannel) else None
        self.channel = channel
        self.plain = PlainInstance(self._model, frames, self._abort_plain, wire.decode_up)

    def load(self, message: wire.Load) -> None:
        """Sends it; `ready` is its end."""
        if self.channel is not None:
            self.channel.send(message)

    def send(self, call: Call) -> None:
        """Puts a request on its way. Raises what encoding it does; then it is not here."""
        if self.channel is not None:
            self.channel.send(call.request)
        call.instance = self
        self.calls[call.request.request_id] = call
        if self.plain is not None:
            self.plain.num_open += 1
        self.watch_progress()

    def abort(self, call: Call, reason: str) -> None:
        """Asks that it is not computed; its answer still comes."""
        call.is_aborted = True
        if self.channel is not None:
            self.channel.send(wire.Abort(request_id=call.request.request_id, reason=reason))

    def watch_progress(self) -> None:
        """Whether it is stalled is looked at while it owes an answer; called when it may have begun to, or be done."""
        self._stall_watch.follow(owes=self.num_open > 0)

    def end_plain(self, error: HeadwayError, deadline_s: float) -> None:
        """Requests on the native way whose deadline is not behind `deadline_s` of the system's monotonic clock end with
        this error; the model need not compute them."""
        if self.plain is not None:
            for wire_id in self.plain.expire(deadline_s, error):
                self._abort_plain(wire_id, error.message)

    async def close(self, grace_s: float) -> None:
        """Ends the process; one that still loads at once. Returns when it is gone."""
        self.is_closing = True
        if self.channel is not None and not self.is_gone:
            await self.channel.close(grace_s if self.is_ready else 0.0)

    # worker/channel.Receiver

    def take_plain(self, payload: bytes) -> bytes | None:
        """Answers to requests on the native way go back on it."""
        if self.plain is None or not self.plain.take(payload):
            return payload
        self._stall_watch.note_progress()
        return None

    def on_messages(self, messages: Sequence[wire.Up]) -> None:
        """Takes what it says."""
        self._stall_watch.note_progress()
        for message in messages:
            if isinstance(message, wire.Outputs):
                self._take_outputs(message)
            else:
                self._take(message)

    def on_end(self, end: WorkerEnd) -> None:
        """It is gone: every open request gets an error, and its load too."""
        error = self._make_end_error(end)
        self.is_gone = True
        self._stall_watch.end()
        calls, self.calls = list(self.calls.values()), {}
        if self.plain is not None:
            self.plain.is_ready = False
            self.plain.num_open -= len(calls)
        self._owner.on_lost(self, error)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()
        for call in calls:
            call.fail(error)
            self._owner.on_answered(call, has_served=False)
        if self.plain is not None:
            self.plain.fail(error)

    def _take_outputs(self, message: wire.Outputs) -> None:
        call = self.calls.pop(message.request_id, None)
        if call is None:
            logger.warning("%s: an answer to %s, which is not open", self.name, message.request_id)
            return
        if self.plain is not None:
            self.plain.num_open -= 1
        self.watch_progress()
        if message.error is not None:
            call.fail(from_wire(message.error))
        elif not call.answer.done():
            call.answer.set_result(message)
        self._owner.on_answered(call, has_served=True)

    def _take(self, message: wire.Up) -> None:
        match message:
            case wire.Stats():
                self.stats = message.values
            case wire.Loading():
                self._owner.on_loading(self, message)
            case wire.Ready():
                if not self.ready.done():
                    self.was_ready = True
                    if self.plain is not None:
                        self.plain.is_ready = True
                    self.ready.set_result(message)
            case wire.Failed():
                self._failure = from_wire(message.error)
                if not self.ready.done():
                    self.ready.set_exception(self._failure)
                    self.ready.exception()
            case _:
                logger.warning("%s: an answer of type %s that nobody asked for", self.name, type(message).__name__)

    def _abort_plain(self, wire_id: str, reason: str = "its caller left") -> None:
        self._owner.on_plain_abort()
        if self.channel is not None:
            self.channel.send(wire.Abort(request_id=wire_id, reason=reason))

    # a process that makes no progress

    def _stall_limit_s(self) -> float:
        """The time-out, or several times what its longest batch took."""
        return max(self._stall_timeout_s, PATIENCE * self.stats.get("infer_max_batch_seconds", 0.0))

    def _end_stalled(self, limit_s: float) -> None:
        if self.channel is not None:
            self._is_stalled = True
            self.channel.kill(f"made no progress for {limit_s:g} s and was killed")

    def _make_end_error(self, end: WorkerEnd) -> HeadwayError:
        if not self.is_closing:
            logger.error("%s: the process %s. Its last words: %s", self.name, end.how, end.last_words or "none")
        if self._is_stalled:
            return WorkerStalled(f"the process of model {self.name} {end.how}; it is started again")
        if self._failure is not None:
            return WorkerDied(f"the process of model {self.name} failed: {self._failure.message}; it is started again")
        return WorkerDied(f"the process of model {self.name} {end.how}; it is started again")
