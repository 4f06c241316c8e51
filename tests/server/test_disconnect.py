"""Work for a client ends with the client, cleanly; and whoever else ends it is told so."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message, Scope

from headway.server.disconnect import WATCH_EXTENSION, ClientGone, run_watched


class Client:
    """Its body has come; it leaves when it is told to. Seen by receive() alone, or by a server that can be asked."""

    def __init__(self, is_asked: bool) -> None:
        self.leaves = asyncio.Event()
        self.num_told = 0
        self.scope: Scope = {"type": "http", "extensions": {WATCH_EXTENSION: self._watch} if is_asked else {}}
        self._told: Callable[[], None] = lambda: None

    def leave(self) -> None:
        self.leaves.set()
        asyncio.get_running_loop().call_soon(self._told)

    def _watch(self, told: Callable[[], None] | None) -> None:
        self._told = told or (lambda: None)
        if self.leaves.is_set():
            asyncio.get_running_loop().call_soon(self._told)

    async def receive(self) -> Message:
        self.num_told += 1
        if self.num_told == 1:
            return {"type": "http.request", "body": b"late", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


@pytest.fixture(params=[False, True], ids=["receive", "watch"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


class Work:
    """Runs until it is ended, and then cleans up, which takes a turn of the loop."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.started = asyncio.Event()
        self.on_cleaning: Callable[[], object] = lambda: None
        self.is_clean = False
        self._fault = fault

    async def run(self) -> str:
        try:
            self.started.set()
            await asyncio.Event().wait()
            return "never"
        finally:
            self.on_cleaning()
            await asyncio.sleep(0)
            self.is_clean = True
            if self._fault is not None:
                raise self._fault


async def test_a_result_is_passed_on_and_nothing_is_left(client: Client) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await run_watched(client.receive, work(), client.scope) == 7
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_is_passed_on_and_nothing_is_left(client: Client) -> None:
    async def work() -> None:
        raise ZeroDivisionError("injected")

    with pytest.raises(ZeroDivisionError):
        await run_watched(client.receive, work(), client.scope)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("fault", [None, ZeroDivisionError("in its cleaning up")])
async def test_work_is_cleaned_up_when_its_client_has_left(client: Client, fault: Exception | None) -> None:
    work = Work(fault)
    running = asyncio.create_task(run_watched(client.receive, work.run(), client.scope))
    await work.started.wait()
    client.leave()
    with pytest.raises(ClientGone):
        await running
    assert work.is_clean
    assert running.cancelling() == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_left_before_the_work_began_ends_it(client: Client) -> None:
    work = Work()
    client.leave()
    with pytest.raises(ClientGone):
        await run_watched(client.receive, work.run(), client.scope)
    assert work.is_clean


async def test_who_cancels_the_request_himself_sees_it_cancelled(client: Client) -> None:
    work = Work()
    running = asyncio.create_task(run_watched(client.receive, work.run(), client.scope))
    await work.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.is_clean
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_beside_a_departure_is_not_swallowed(client: Client) -> None:
    work = Work()
    running = asyncio.create_task(run_watched(client.receive, work.run(), client.scope))
    await work.started.wait()
    work.on_cleaning = running.cancel
    client.leave()
    with pytest.raises(asyncio.CancelledError):
        await running
