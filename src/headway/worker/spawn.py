"""A worker's process: how it is started, and one that is started ahead, before it is known what it will run.

The interpreter and the imports of a worker take as long as those of its parent. spawn_ahead() starts them at once, on
another core, from a module that needs next to nothing itself; start_process takes what waits. Nobody has to take it:
its socket ends with the parent, and so does it.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.observe.processes import start_child
from headway.worker.groups import GROUPS, end_group


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child that waits for its Load, and our end of the socket pair."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket

    def kill(self) -> None:
        """Ends what was never used."""
        self.connection.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.process.returncode is None:  # else its number may be another group's by now
            end_group(self.process.pid)
        GROUPS.release(self.process.pid)
        self.process.wait()


_waiting: list[Spawned] = []
"""What spawn_ahead() started and nobody took: one at most."""


def spawn_ahead(*modules: str) -> None:
    """Starts a child for the next take_spawned(), which imports `modules` while it waits. What fails, fails later: the
    one who needs a worker starts it then and tells why it can not."""
    if _waiting:
        return
    try:
        _waiting.append(spawn(sys.executable, *modules))
    except OSError:
        return


def take_spawned() -> Spawned | None:
    """The child that was started ahead, once, if it still lives."""
    while _waiting:
        spawned = _waiting.pop()
        if spawned.process.poll() is None:
            return spawned
        spawned.kill()
    return None


def spawn(python: str, *modules: str) -> Spawned:
    """Starts a worker with this interpreter; it imports `modules` before its Load comes. Raises OSError."""
    return spawn_command([python, "-m", "headway.worker.serve", *(f"--import={module}" for module in modules)])


def spawn_command(
    command: Sequence[str],
    *,
    without: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Spawned:
    """Starts a process that serves a socket (`--fd N` is appended); its output comes to us. Raises OSError.

    It leads a process group, and what it starts ends with it (worker/groups).

    Args:
        without: environment variables that it does not inherit.
        variables: those that it has beside the others.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    # cuda:N is to mean there what NVML tells here; CUDA's own order is by speed.
    numbering = {"CUDA_DEVICE_ORDER": inherited.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}
    env = inherited | {"PYTHONUNBUFFERED": "1"} | numbering | dict(variables or {})
    child, connection = start_child(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        process_group=0,
    )
    GROUPS.add(child.pid)
    return Spawned(child, connection)
