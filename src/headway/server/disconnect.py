"""Work for a client, only as long as the client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection before its answer was complete: nobody is left to be told."""


async def run_watched(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises; cancels it and raises ClientGone when the client leaves first.

    The request's body must have been read: whatever comes before the disconnect is dropped. `work` runs in the caller's
    task, and has ended, its finally blocks included, when this returns.
    """
    running = _running_task()
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    is_gone, num_cancels = False, running.cancelling()

    def leave(_: object) -> None:
        nonlocal is_gone
        is_gone = True
        running.cancel()

    watching.add_done_callback(leave)
    try:
        return await work
    except BaseException:
        # Whoever else cancelled this task as well is heard, as by asyncio.timeout().
        if is_gone and running.uncancel() <= num_cancels:
            raise ClientGone from None
        raise
    finally:
        watching.remove_done_callback(leave)
        watching.cancel()
        await asyncio.wait((watching,))


def _running_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("run_watched() was called outside of a task")
    return task


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
