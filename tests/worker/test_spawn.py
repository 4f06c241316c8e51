"""A worker that is started before it is known what it will run: taken once, alive, or not at all."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import psutil
import pytest

import headway_wire as wire
from headway.worker.channel import WorkerEnd
from headway.worker.process import start_process
from headway.worker.spawn import Spawned, spawn, spawn_ahead, take_spawned

WAIT_S = 30.0


class Silent:
    def take_plain(self, payload: bytes) -> bytes:
        return payload

    def on_messages(self, messages: Sequence[wire.Up]) -> None: ...

    def on_end(self, end: WorkerEnd) -> None: ...


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    left = take_spawned()
    if left is not None:
        left.kill()


def take() -> Spawned:
    spawned = take_spawned()
    assert spawned is not None
    return spawned


async def test_start_process_takes_what_waits_and_then_starts_another() -> None:
    spawn_ahead()
    spawn_ahead()  # one is enough
    first = await start_process("first", Silent())
    waiting = take_spawned()
    second = await start_process("second", Silent())
    try:
        assert waiting is None
        assert first.pid != second.pid
    finally:
        await asyncio.gather(first.close(WAIT_S), second.close(WAIT_S))


async def test_another_interpreter_does_not_get_the_one_that_waits() -> None:
    spawn_ahead()
    other = await start_process("other", Silent(), python=sys.executable)
    waiting = take()
    assert waiting.process.pid != other.pid
    waiting.kill()
    await other.close(WAIT_S)


def test_one_that_has_died_is_not_given() -> None:
    # Others' children may stand anywhere in the list: ours is the new one.
    before = set(psutil.Process().children())
    spawn_ahead()
    new = set(psutil.Process().children()) - before
    (waiting,) = [child for child in new if "headway.worker.serve" in child.cmdline()]  # the other guards its group
    waiting.kill()
    psutil.wait_procs([waiting], WAIT_S)
    assert take_spawned() is None


@pytest.mark.parametrize("module", ["headway.errors", "there.is.none"])
def test_what_can_not_be_imported_ahead_does_not_end_it(module: str) -> None:
    spawned = spawn(sys.executable, module)
    spawned.connection.sendall(wire.pack_frame(wire.encode(wire.Shutdown())))
    assert spawned.process.wait(WAIT_S) == 0
    assert spawned.process.stdout is not None
    assert spawned.process.stdout.read() == b""
    spawned.kill()


def test_one_that_nobody_takes_ends_with_its_parent() -> None:
    code = "from headway.worker import spawn; spawn.spawn_ahead(); print(spawn._waiting[0].process.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    if psutil.pid_exists(pid):
        psutil.wait_procs([psutil.Process(pid)], WAIT_S)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_what_has_ended_and_was_waited_for_is_let_go_without_a_signal_to_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawned = spawn("/bin/true")
    spawned.process.wait(WAIT_S)
    hit: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: hit.append(group))
    spawned.kill()
    assert hit == []
