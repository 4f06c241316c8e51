"""LaunchedServer: another program's server as a process of ours: its own process group, its output in our log, its end
seen, and none of it outliving us (worker/guard)."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from headway.observe.processes import describe_exit, start_child
from headway.worker.groups import end_group, outlive_leader, reap_group
from headway.worker.process import OutputLog

_EXIT_WAIT_S = 0.5
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Say where this interpreter finds its packages: another one has its own."""


class LaunchedServer:
    """One process group. Made by start_server."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", connection: socket.socket) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done once its first process is gone: how it ended."""
        self.output = OutputLog(name, lambda: None)
        self._process = process
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, name=f"wait for {name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the guard, which all others are children of."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last lines that it wrote."""
        return self.output.last_words

    async def close(self, grace_s: float) -> None:
        """Ends it: SIGTERM, and after `grace_s` SIGKILL to the whole group; returns when its first process is gone."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.ended), grace_s)
        if self._process.returncode is None:  # else its number may be another group's by now
            end_group(self._process.pid)
        await self.ended
        self.output.close()
        self._connection.close()

    def _wait(self) -> None:
        outlive_leader(self._process.pid)
        code = self._process.wait()
        # The guard ends with its group; what the command ended with, it has told before.
        with contextlib.suppress(OSError, ValueError):
            code = int(self._connection.recv(16))
        # The loop may be closed already: then there is nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_exit, code)
        reap_group(self._process.pid)

    def _on_exit(self, code: int) -> None:
        """Its last words may still be in the pipe."""
        how = describe_exit(code)
        self._loop.call_later(0.0 if self.output.is_at_eof else _EXIT_WAIT_S, self._tell, how)

    def _tell(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(how)


async def start_server(name: str, command: Sequence[str], environment: Mapping[str, str]) -> LaunchedServer:
    """Starts it; it is not ready yet. Raises OSError.

    Args:
        environment: added to this process's own.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in _OURS}
    guard = [sys.executable, "-P", "-m", "headway.worker.guard", "--command", json.dumps(list(command))]
    process, connection = start_child(
        guard,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**inherited, "PYTHONUNBUFFERED": "1", **environment},
        start_new_session=True,
    )
    server = LaunchedServer(name, process, connection)
    try:
        await asyncio.get_running_loop().connect_read_pipe(lambda: server.output, process.stdout)
    except BaseException:
        connection.close()  # by which its guard ends it
        raise
    return server


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses at the moment; who is quicker may take it, and then the start fails."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
