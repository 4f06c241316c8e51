"""Places: how many calls of a model are on their way at once, and who waits for a place."""

import asyncio
from collections import deque
from collections.abc import Callable

from headway.errors import QueueFull


class Places:
    """At most `limit` at once, the others in order of arrival. All on the event loop's thread."""

    def __init__(self, name: str, limit: int | None, max_queued: int | None) -> None:
        """None: any number."""
        self._name = name
        self._limit = limit
        self._max_queued = max_queued
        self._num_taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> Callable[[], None]:
        """Waits for a place; what it returns gives the place back, and must be called once. Raises QueueFull."""
        if self._limit is None or self._num_taken < self._limit:
            self._num_taken += 1
            return self._leave
        if self._max_queued is not None and len(self._waiting) >= self._max_queued:
            raise QueueFull(
                f"{len(self._waiting)} requests wait for model {self._name}, of which {self._limit} run at once "
                "(concurrency): try again later",
                retry_after_s=1.0,
            )
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was given one at the same moment
            raise
        return self._leave

    def _leave(self) -> None:
        """Hands the place to who waits longest."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._num_taken -= 1
