"""Work for a client ends with the client, cleanly; and whoever else ends it is told so."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message

from headway.server.disconnect import ClientGone, run_watched


class Client:
    """Its body has come; it leaves when it is told to."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.num_told = 0

    async def receive(self) -> Message:
        self.num_told += 1
        if self.num_told == 1:
            return {"type": "http.request", "body": b"late", "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}


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


async def test_a_result_is_passed_on_and_nothing_is_left() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await run_watched(Client().receive, work()) == 7
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_is_passed_on_and_nothing_is_left() -> None:
    async def work() -> None:
        raise ZeroDivisionError("injected")

    with pytest.raises(ZeroDivisionError):
        await run_watched(Client().receive, work())
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("fault", [None, ZeroDivisionError("in its cleaning up")])
async def test_work_is_cleaned_up_when_its_client_has_left(fault: Exception | None) -> None:
    client, work = Client(), Work(fault)
    running = asyncio.create_task(run_watched(client.receive, work.run()))
    await work.started.wait()
    client.leaves.set()
    with pytest.raises(ClientGone):
        await running
    assert work.is_clean
    assert running.cancelling() == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_left_before_the_work_began_ends_it() -> None:
    client, work = Client(), Work()
    client.leaves.set()
    with pytest.raises(ClientGone):
        await run_watched(client.receive, work.run())
    assert work.is_clean


async def test_who_cancels_the_request_himself_sees_it_cancelled() -> None:
    client, work = Client(), Work()
    running = asyncio.create_task(run_watched(client.receive, work.run()))
    await work.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.is_clean
    assert len(asyncio.all_tasks()) == 1


async def test_a_cancellation_beside_a_departure_is_not_swallowed() -> None:
    client, work = Client(), Work()
    running = asyncio.create_task(run_watched(client.receive, work.run()))
    await work.started.wait()
    work.on_cleaning = running.cancel
    client.leaves.set()
    with pytest.raises(asyncio.CancelledError):
        await running
