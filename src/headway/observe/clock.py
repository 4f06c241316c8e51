"""The clock, as an object that tests replace by testing/fake_clock: seconds, and calls at a later second."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """It does not come any more; after it came, nothing."""
        ...


class Clock(Protocol):
    """Monotonic seconds of an unknown origin."""

    def now(self) -> float:
        """Seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls `callback` once now() has reached `when`, from the event loop, never before this returns."""
        ...


class SystemClock:
    """time.monotonic, and timers of the running asyncio loop."""

    now = staticmethod(time.monotonic)
    """Seconds; may be called from any thread."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Must be called on a running loop's thread."""
        return asyncio.get_running_loop().call_later(max(0.0, when - self.now()), callback)
