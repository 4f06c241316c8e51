"""Recording: steps that are being recorded at a worker, for whoever asked. One at a time."""

import asyncio
from collections.abc import Callable

import headway_wire as wire
from headway.errors import HeadwayError, QueueFull, from_wire
from headway.observe.clock import Clock


class Recording:
    """The parent's side of Profile. On the event loop's thread."""

    def __init__(self, send: Callable[[wire.Down], None], clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._steps: list[wire.ProfiledStep] = []
        self._end: asyncio.Future[None] | None = None
        """While something is recorded."""
        self._num_left = 0
        """Recordings whose caller has gone, and whose end is still to come: exactly one ProfileEnd each."""

    async def record(self, num_steps: int, timeout_s: float) -> list[wire.ProfiledStep]:
        """Asks for steps and waits; at the time-out for what there is. Raises as WorkerClient.profile()."""
        if self._end is not None:
            raise QueueFull("steps of this model are being recorded already: try again later", retry_after_s=1.0)
        self._steps, self._end = [], asyncio.get_running_loop().create_future()
        self._send(wire.Profile(num_steps=num_steps))
        timer = self._clock.call_at(self._clock.now() + timeout_s, self._stop)
        try:
            await self._end
            return self._steps
        finally:
            timer.cancel()
            if self._end.cancelled():
                self._num_left += 1
                self._stop()
            self._end = None

    def take(self, message: wire.ProfiledStep | wire.ProfileEnd) -> None:
        """What the worker says. What comes for nobody is dropped."""
        if self._num_left:
            self._num_left -= isinstance(message, wire.ProfileEnd)
            return
        if self._end is None or self._end.done():
            return
        if isinstance(message, wire.ProfiledStep):
            self._steps.append(message)
        elif message.error is not None:
            self._end.set_exception(from_wire(message.error))
        else:
            self._end.set_result(None)

    def lose_worker(self, error: HeadwayError) -> None:
        """It is gone."""
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)

    def _stop(self) -> None:
        self._send(wire.Profile(num_steps=0))
