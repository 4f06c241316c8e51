"""A clock that stands until a test moves it (observe/clock.Clock)."""

import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    """A call that is still to come."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """It does not come any more."""
        self.callback = None


class FakeClock:
    """Starts at 1,000 s; advance() makes the calls that become due, in order, each at its own time."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def now(self) -> float:
        """Seconds."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> FakeTimer:
        """Calls `callback` in the advance() that reaches `when`."""
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Moves on; also makes the calls that the calls ask for, if they are due by then."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                callback()
        self._now = end

    @property
    def num_timers(self) -> int:
        """Calls that are still to come."""
        return sum(timer.callback is not None for _, _, timer in self._timers)
