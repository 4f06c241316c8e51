"""Batching: whether who waits may join those that run. One object in the scheduler; its loop is the same for all.

continuous  Whoever waits starts as soon as there is room: a stream of small boats.
dynamic     A ferry on the clock: nobody boards while it is under way. In port it leaves when it is full, or when
            the first on board has waited long enough, with those who are there. Who arrives gets off.
static      The same, but nobody gets off before all have arrived: a row that ended is computed on until the last
            one ends, as a padded batch does. What continuous batching is compared with.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Protocol

from headway.config import BatchingMode
from headway.core.sequence import Sequence, SequenceStatus
from headway.errors import InvalidConfig


class Batching(Protocol):
    """Who may start. Not thread-safe; the scheduler owns it."""

    pads_finished: bool
    """A sequence that ended keeps its row while is_underway()."""
    is_closed: bool
    """Nobody else will come for now: what waits is all."""

    def boarding(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """Of `waiting`, those that may start now, in the same order. Changes nothing."""
        ...

    def board(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """boarding(), for real: where it was a departure, the batch is under way now."""
        ...

    def is_underway(self) -> bool:
        """Whether a batch has left and not all of it has ended."""
        ...

    def wait_s(self, waiting: Items[Sequence]) -> float | None:
        """Seconds until boarding() will not be empty any more; None: that is not a question of time."""
        ...


class Continuous:
    """No batch: everybody may start at any time."""

    def __init__(self) -> None:
        self.pads_finished = False
        self.is_closed = False

    def boarding(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """All."""
        return waiting

    def board(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """All."""
        return waiting

    def is_underway(self) -> bool:
        """Never."""
        return False

    def wait_s(self, waiting: Items[Sequence]) -> float | None:
        """Nobody waits for the clock."""
        return None


class Ferry:
    """One batch after the other.

    Args:
        capacity: sequences on board at most.
        max_delay_s: how long the first on board waits for others.
        now: the seconds of Sequence.arrival_s.
        pads_finished: static: nobody gets off before all have arrived.
    """

    def __init__(
        self, *, capacity: int, max_delay_s: float, now: Callable[[], float], pads_finished: bool = False
    ) -> None:
        self.pads_finished = pads_finished
        self.is_closed = False
        self._capacity = capacity
        self._max_delay_s = max_delay_s
        self._now = now
        self._passengers: list[Sequence] = []

    def boarding(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """Under way: passengers that have no row yet, or lost it. In port: who leaves now, if it is time."""
        if self.is_underway():
            return [sequence for sequence in self._passengers if sequence.status is SequenceStatus.WAITING]
        ready = _ready(waiting)
        return ready[: self._capacity] if self._has_to_leave(ready) else []

    def board(self, waiting: Items[Sequence]) -> Items[Sequence]:
        """boarding(); who leaves now are the passengers until all of them have ended."""
        boarding = self.boarding(waiting)
        if not self.is_underway():
            self._passengers = list(boarding)
        return boarding

    def is_underway(self) -> bool:
        """Whether somebody on board has not ended."""
        return any(sequence.status is not SequenceStatus.FINISHED for sequence in self._passengers)

    def wait_s(self, waiting: Items[Sequence]) -> float | None:
        """Until the first on board has waited long enough; under way and with nobody on board: None."""
        ready = _ready(waiting)
        if not ready or self.is_underway():
            return None
        return max(0.0, self._leaves_at(ready) - self._now())

    def _has_to_leave(self, ready: list[Sequence]) -> bool:
        """1. Full. 2. Nobody else comes. 3. The first has waited long enough."""
        if not ready:
            return False
        return len(ready) >= self._capacity or self.is_closed or self._now() >= self._leaves_at(ready)

    def _leaves_at(self, ready: list[Sequence]) -> float:
        return min(sequence.arrival_s for sequence in ready) + self._max_delay_s


def _ready(waiting: Items[Sequence]) -> list[Sequence]:
    """Who has a slow reader does not board: all others would wait for it."""
    return [sequence for sequence in waiting if not sequence.is_held]


def make_batching(mode: BatchingMode, *, capacity: int, max_delay_s: float, now: Callable[[], float]) -> Batching:
    """The batching of that name. Raises InvalidConfig."""
    if not 0 <= max_delay_s < math.inf:
        raise InvalidConfig(
            f"max_queue_delay_ms is {max_delay_s * 1e3}; it must be at least 0 and finite", param="max_queue_delay_ms"
        )
    if mode == "continuous":
        return Continuous()
    return Ferry(capacity=capacity, max_delay_s=max_delay_s, now=now, pads_finished=mode == "static")
