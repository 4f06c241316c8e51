"""Work for a client, only as long as the client is there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

T = TypeVar("T")

WATCH_EXTENSION = "headway.watch_client"
"""In scope["extensions"], where the server offers it: a Watch."""
Watch = Callable[[Callable[[], None] | None], None]
"""Takes whom to call, from the event loop, once the client has left, also if that was before; None: nobody."""


class ClientGone(Exception):
    """The client closed its connection before its answer was complete: nobody is left to be told."""


async def run_watched(receive: Receive, work: Coroutine[Any, Any, T], scope: Scope | None = None) -> T:
    """What `work` returns or raises; cancels it and raises ClientGone when the client leaves first.

    The request's body must have been read: whatever comes before the disconnect is dropped. `work` runs in the caller's
    task, and has ended, its finally blocks included, when this returns. Where the server does not offer WATCH_EXTENSION
    in `scope`, a task of its own waits for the disconnect.
    """
    departure = _Departure()
    watch: Watch | None = ((scope or {}).get("extensions") or {}).get(WATCH_EXTENSION)
    if watch is not None:
        watch(departure.come)
        try:
            return await _run(work, departure)
        finally:
            watch(None)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    watching.add_done_callback(departure.come)
    try:
        return await _run(work, departure)
    finally:
        watching.remove_done_callback(departure.come)
        watching.cancel()
        await asyncio.wait((watching,))


class _Departure:
    """A client's leaving, which cancels the task that works for it."""

    def __init__(self) -> None:
        self._task = _running_task()
        self._num_cancels = self._task.cancelling()
        self._has_come = False

    def come(self, _: object = None) -> None:
        """It leaves; must not be called from the task itself, which would not be told any more."""
        self._has_come = True
        self._task.cancel()

    def is_cause(self) -> bool:
        """Whether the task was cancelled by this alone: whoever else did so is heard, as by asyncio.timeout()."""
        return self._has_come and self._task.uncancel() <= self._num_cancels


async def _run(work: Coroutine[Any, Any, T], departure: _Departure) -> T:
    try:
        return await work
    except BaseException:
        if departure.is_cause():
            raise ClientGone from None
        raise


def _running_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("run_watched() was called outside of a task")
    return task


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
