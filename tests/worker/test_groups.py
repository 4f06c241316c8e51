"""What a model has started ends with the server, also where nobody in the server can see to it."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headway.worker.groups import GroupGuard

WAIT_S = 30.0
SLEEP = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def leader() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that leads a group and waits for the end of its input."""
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, process_group=0) as process:
        yield process
        process.kill()


def end(guard: GroupGuard) -> None:
    """As the end of this process would: its pipe is closed, and it is waited for."""
    assert guard._pipe is not None
    assert guard.pid is not None
    os.close(guard._pipe)
    os.waitpid(guard.pid, 0)
    guard.pid = guard._pipe = None


def test_a_group_that_was_added_ends_with_the_guards_input(leader: "subprocess.Popen[bytes]") -> None:
    guard = GroupGuard()
    guard.add(leader.pid)
    end(guard)
    assert leader.wait(WAIT_S) == -signal.SIGKILL


def test_a_group_that_was_released_is_left_alone(leader: "subprocess.Popen[bytes]") -> None:
    guard = GroupGuard()
    guard.add(leader.pid)
    guard.release(leader.pid)
    assert guard.pid is None  # with the last group the guard is gone
    assert leader.poll() is None


def test_a_guard_that_was_killed_is_replaced_by_one_that_knows_all_groups(leader: "subprocess.Popen[bytes]") -> None:
    guard = GroupGuard()
    guard.add(leader.pid)
    first = guard.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, process_group=0) as other:
        guard.add(other.pid)
        assert guard.pid != first
        end(guard)
        assert leader.wait(WAIT_S) == other.wait(WAIT_S) == -signal.SIGKILL


def test_a_guard_that_is_stopped_holds_nobody_up(leader: "subprocess.Popen[bytes]") -> None:
    guard = GroupGuard()
    guard.add(leader.pid)
    assert guard.pid is not None
    os.kill(guard.pid, signal.SIGSTOP)
    guard.release(leader.pid)
    assert guard.pid is None
    assert leader.poll() is None


def test_a_guard_that_reads_no_more_is_replaced_and_what_it_was_not_told_is_left_alone(
    leader: "subprocess.Popen[bytes]",
) -> None:
    guard = GroupGuard()
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, process_group=0) as other:
        guard.add(leader.pid)
        guard.add(other.pid)
        first = guard.pid
        assert first is not None
        assert guard._pipe is not None
        os.kill(first, signal.SIGSTOP)
        os.waitid(os.P_PID, first, os.WSTOPPED | os.WNOWAIT)
        with contextlib.suppress(BlockingIOError):
            while os.write(guard._pipe, b"\n"):
                continue
        guard.release(leader.pid)
        assert guard.pid != first
        end(guard)
        assert other.wait(WAIT_S) == -signal.SIGKILL
    assert leader.poll() is None


def test_a_guard_is_deaf_to_the_signals_of_a_terminal(leader: "subprocess.Popen[bytes]") -> None:
    guard = GroupGuard()
    guard.add(leader.pid)
    assert guard.pid is not None
    status = psutil.Process(guard.pid)
    while status.name().startswith("pytest") or not _ignores(guard.pid, signal.SIGTERM):
        assert status.is_running()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(guard.pid, number)
    guard.release(leader.pid)
    assert leader.poll() is None


def _ignores(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in lines if line.startswith("SigIgn"))
    return bool(int(mask, 16) >> (signal.SIGQUIT - 1) & 1 and int(mask, 16) >> (number - 1) & 1)


MODEL = """
import os, subprocess, sys

class Model:
    def load(self, source):
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def predict(self, value):
        return [os.getpid(), self.child.pid]
"""
SERVER = """
import asyncio, sys
from pathlib import Path
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import InferRequest
from headway.service.local import LocalService

async def main():
    model = ModelConfig(source=sys.argv[1], framework="python", type="python", served_names=("m",))
    service = LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=Path("/nonexistent")))
    await service.start()
    inferred = await service.infer(InferRequest(request_id="r", model="m", value=None))
    print(*inferred.value, flush=True)
    await {then}

asyncio.run(main())
"""
FIRST_OF_A_CONTAINER = """
import asyncio, ctypes, psutil

PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

async def unload(service, child):
    await service.unload("m")
    async with asyncio.timeout(20.0):
        while psutil.pid_exists(child):
            await asyncio.sleep(0.001)
    await service.aclose()
"""


def test_a_killed_server_takes_along_what_its_models_have_started(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    command = [sys.executable, "-c", SERVER.format(then="asyncio.Event().wait()"), str(tmp_path / "model.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pids = [int(word) for word in server.stdout.readline().split()]
        assert len(pids) == 2
        family = [psutil.Process(pid) for pid in pids]
        server.kill()
    _, alive = psutil.wait_procs(family, WAIT_S)
    assert [it for it in alive if it.status() != psutil.STATUS_ZOMBIE] == []


def test_the_first_process_of_a_container_keeps_no_zombies_of_its_models(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    program = FIRST_OF_A_CONTAINER + SERVER.format(then="unload(service, inferred.value[1])")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model.py")], check=True, timeout=WAIT_S)
