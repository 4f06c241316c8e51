"""The worker's loop over one predictor: the same in a child process (serve.py) and in a thread (testing/).

1. The first message is Load: the predictor is found by its dotted name and loads, telling its phases.
   1a. It loads: Ready.   1b. It does not: Failed, and the loop ends with exit code 1.
2. Between steps the inbox is drained; without work the loop sleeps in it, at no cost, as long as the predictor says.
   2a. Shutdown: what is open is aborted, its events are sent, the loop ends with exit code 0.
   2b. Everything else goes to the predictor; its answers go out in order.
3. With work: one step, its messages out. While steps are recorded, what was recorded too.
4. Stats go out when the predictor becomes idle, and at most once a second while it is busy.
5. What 3 and 4 tell goes out at once: the parent wakes once for it, and takes a core from the next step once.
What escapes the predictor in 2 or 3 ends the worker: Failed, exit code 1.
"""

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol, cast

import headway_wire as wire
from headway.errors import (
    HeadwayError,
    InternalError,
    InvalidConfig,
    InvariantBroken,
    OutOfMemory,
    UnsupportedFeature,
)
from headway.predictors.base import Predictor, PreparingPredictor, ProfiledPredictor, TextPredictor, TimedPredictor

logger = logging.getLogger(__name__)

STATS_INTERVAL_S = 1.0
_MAX_LAST_STEPS = 3
"""Steps that a predictor may take to end what a Shutdown aborted."""

Send = Callable[[wire.Up], None]
SendAll = Callable[[Sequence[wire.Up]], None]


class Inbox:
    """Messages for the worker, put in by another thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[wire.Down] = SimpleQueue()

    def put(self, message: wire.Down) -> None:
        """From any thread."""
        self._queue.put(message)

    def take(self, *, is_blocking: bool, timeout_s: float | None = None) -> Iterable[wire.Down]:
        """All that is there; if it must, it waits for the first, at most so long."""
        try:
            yield self._queue.get(block=is_blocking, timeout=timeout_s)
            while True:
                yield self._queue.get_nowait()
        except Empty:
            return


class Taken(Protocol):
    """Where a loop takes its messages from."""

    def take(self, *, is_blocking: bool, timeout_s: float | None = None) -> Iterable[wire.Down]:
        """See Inbox."""
        ...


class OpenRequests:
    """Which requests the predictor still owes terminal events for, or an answer."""

    def __init__(self) -> None:
        self._num_owed: dict[str, int] = {}
        self._num_choices: dict[str, int] = {}

    def note_down(self, message: wire.Down) -> None:
        """Of a message to the predictor."""
        if isinstance(message, wire.Submit):
            self._num_choices[message.request_id] = message.sampling.n
        elif isinstance(message, wire.SubmitText):
            self._num_owed[message.request_id] = 1

    def note_up(self, message: wire.Up) -> None:
        """Of a message from the predictor."""
        if isinstance(message, wire.Step):
            for event in message.events:
                if event.finish_reason is not None:
                    self._note_end(event.request_id)
        elif isinstance(message, wire.Embedding):
            self._note_end(message.request_id)
        elif isinstance(message, wire.Accepted):
            self._num_owed[message.request_id] = self._num_choices.pop(message.request_id, 1)
        elif isinstance(message, wire.Refused):
            self._num_choices.pop(message.request_id, None)
            self._num_owed.pop(message.request_id, None)

    def ids(self) -> list[str]:
        """In the order of their acceptance, then those that have no answer yet."""
        return [*self._num_owed, *self._num_choices]

    def _note_end(self, request_id: str) -> None:
        num_owed = self._num_owed.get(request_id, 0) - 1
        if num_owed > 0:
            self._num_owed[request_id] = num_owed
        else:
            self._num_owed.pop(request_id, None)


class WorkerLoop:
    """One predictor from its Load to its end; run() blocks for its whole life and is called once.

    Args:
        serves_many: this is a process of its own, and streams must not feel what others' first requests need.
        send_all: sends several in one write; None: `send` each.
    """

    def __init__(
        self,
        inbox: Taken,
        send: Send,
        *,
        serves_many: bool = False,
        send_all: SendAll | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.predictor: Predictor | None = None
        """Once it is found."""
        self._inbox = inbox
        self._send_up = send
        self._send_all_up = send_all or self._send_each
        self._serves_many = serves_many
        self._now = now
        self._open = OpenRequests()
        self._last_stats_at = now()
        self._has_news = True
        self._is_profiling = False

    def run(self) -> int:
        """The exit code. Raises nothing."""
        try:
            predictor = self._load()
            self._serve(predictor)
            return 0
        except Exception as error:
            # The worker's last act: whatever it was is reported, and counted by the pool as a failed start or a death.
            told = as_headway_error(error)
            if told.fault == "us":  # the parent tells the others; here is where we find ours
                logger.error("the worker failed", exc_info=error)
            self._send_up(wire.Failed(error=told.to_wire()))
            return 1
        finally:
            self._close()

    def _load(self) -> Predictor:
        message = next(iter(self._inbox.take(is_blocking=True)))
        if isinstance(message, wire.Shutdown):
            raise InvariantBroken("shut down before there was anything to load")
        if not isinstance(message, wire.Load):
            raise InvariantBroken(f"the first message is {type(message).__name__}, it must be Load")
        self.predictor = find_predictor(message.predictor)
        if self._serves_many and isinstance(self.predictor, PreparingPredictor):
            self.predictor.prepare()
        self._send_up(self.predictor.load(message.source, dict(message.options), self._send_up))
        return self.predictor

    def _serve(self, predictor: Predictor) -> None:
        while True:
            is_idle = not predictor.has_work()
            if is_idle and self._has_news:
                self._send_up(self._take_stats(predictor))
            wait_s = predictor.wait_s() if is_idle and isinstance(predictor, TimedPredictor) else None
            for message in self._inbox.take(is_blocking=is_idle, timeout_s=wait_s):
                if isinstance(message, wire.Shutdown):
                    self._end_open(predictor)
                    return
                self._handle(predictor, message)
            if predictor.has_work():
                self._step(predictor)

    def _handle(self, predictor: Predictor, message: wire.Down) -> None:
        if isinstance(message, wire.Load | wire.Shutdown):
            raise InvariantBroken("a second Load: a worker loads once")
        if isinstance(message, wire.Profile):
            self._profile(predictor, message)
            return
        self._open.note_down(message)
        if isinstance(message, wire.SubmitText):
            self._send(_submit_text(predictor, message))
        else:
            self._send(predictor.handle(message))

    def _step(self, predictor: Predictor) -> None:
        """3, 4 and 5."""
        self._has_news = True
        made = list(predictor.step())
        if self._is_profiling:
            made += self._take_profile(predictor)
        is_due = self._now() - self._last_stats_at >= STATS_INTERVAL_S
        if is_due or not predictor.has_work():
            made.append(self._take_stats(predictor))
        self._put(made)

    def _send(self, messages: Iterable[wire.Up]) -> None:
        self._has_news = True
        self._put(list(messages))

    def _put(self, messages: Sequence[wire.Up]) -> None:
        for message in messages:
            self._open.note_up(message)
        if messages:
            self._send_all_up(messages)

    def _send_each(self, messages: Sequence[wire.Up]) -> None:
        for message in messages:
            self._send_up(message)

    def _take_stats(self, predictor: Predictor) -> wire.Stats:
        self._has_news = False
        self._last_stats_at = self._now()
        return predictor.stats()

    def _profile(self, predictor: Predictor, message: wire.Profile) -> None:
        if not isinstance(predictor, ProfiledPredictor):
            error = UnsupportedFeature("steps of this model can not be recorded: it does not run on Headway's engine")
            self._send_up(wire.ProfileEnd(error=error.to_wire()))
            return
        predictor.profile(message.num_steps)
        if self._is_profiling and not message.num_steps:
            self._send_up(wire.ProfileEnd())
        self._is_profiling = message.num_steps > 0

    def _take_profile(self, predictor: Predictor) -> list[wire.Up]:
        """What was recorded; the end of it as soon as that is known, which may be before the next step."""
        made: list[wire.Up] = []
        if not isinstance(predictor, ProfiledPredictor):
            return made
        while steps := predictor.take_profile():
            made += steps
        if steps is None:
            self._is_profiling = False
            made.append(wire.ProfileEnd())
        return made

    def _end_open(self, predictor: Predictor) -> None:
        for request_id in self._open.ids():
            self._send(predictor.handle(wire.Abort(request_id=request_id, reason="shutdown")))
        for _ in range(_MAX_LAST_STEPS):
            if not self._open.ids() or not predictor.has_work():
                return
            self._send(predictor.step())

    def _close(self) -> None:
        try:
            if self.predictor is not None:
                self.predictor.close()
        except Exception:
            # Nothing can be done about it any more, and the exit code must stay what it is.
            logger.exception("closing the predictor failed")


def _submit_text(predictor: Predictor, message: wire.SubmitText) -> Iterable[wire.Up]:
    if isinstance(predictor, TextPredictor):
        return predictor.submit_text(message)
    error = UnsupportedFeature("this model takes token ids and no texts")
    return [wire.Refused(request_id=message.request_id, error=error.to_wire())]


def find_predictor(name: str) -> Predictor:
    """An instance of the class that `module:Class` names. Raises InvalidConfig."""
    module_name, _, class_name = name.partition(":")
    try:
        return cast(Predictor, getattr(importlib.import_module(module_name), class_name)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidConfig(
            f"the predictor {name!r} can not be made: {error}; it must be module:Class of something that this"
            " interpreter can import"
        ) from error


def as_headway_error(error: Exception) -> HeadwayError:
    """An error of the tree for whatever was raised."""
    if isinstance(error, HeadwayError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory(f"the worker ran out of memory: {error}")
    return InternalError(f"{type(error).__name__}: {error}")
