"""Another program's server as a process of ours: how its end is told, and that nobody else is hit by it."""

import asyncio
import os
import sys

import psutil
import pytest

from headway.worker.launched import start_server

WAIT_S = 30.0
SLEEP = "import time; time.sleep(600)"
STARTS_A_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"


def family_of(guard: psutil.Process) -> list[psutil.Process]:
    """The server and its child, once they are there."""
    while len(family := guard.children(recursive=True)) < 2:
        continue
    return family


async def test_one_that_has_ended_is_closed_without_a_signal_to_whoever_has_its_number_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await start_server("m", [sys.executable, "-c", "raise SystemExit(3)"], {})
    async with asyncio.timeout(WAIT_S):
        assert await server.ended == "ended with exit code 3"
        hit: list[int] = []
        monkeypatch.setattr(os, "killpg", lambda group, number: hit.append(group))
        await server.close(1.0)
    assert hit == []


async def test_what_it_has_started_ends_with_it_though_its_guard_was_killed() -> None:
    server = await start_server("m", [sys.executable, "-c", STARTS_A_CHILD], {})
    guard = psutil.Process(server.pid)
    async with asyncio.timeout(WAIT_S):
        family = await asyncio.to_thread(family_of, guard)
        guard.kill()
        assert await server.ended == "was ended by SIGKILL"
        await server.close(1.0)
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, WAIT_S)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
