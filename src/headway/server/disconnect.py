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

    The request's body must have been read: whatever comes before the disconnect is dropped. `work` has ended, its
    finally blocks included, when this returns.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
