"""Processor time of a server and of its worker, from /proc (Linux), and the ends of processes that we start.

What a worker spends on reading and sending messages it counts itself; it is among the server's metrics once the worker
is idle.
"""

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

WIRE = re.compile(rb"^headway_wire_cpu_seconds_total\{.*?\} (\S+)$", re.M)
RUNNING = re.compile(rb"^headway_num_requests_running\{.*?\} (\S+)$", re.M)


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of processor time since the start."""

    server: float
    """All threads of the server's process."""
    wire: float
    """What the worker spends on messages."""
    worker: float
    """All threads of the worker."""

    def __sub__(self, other: "CpuTimes") -> "CpuTimes":
        return CpuTimes(self.server - other.server, self.wire - other.wire, self.worker - other.worker)


@dataclass(frozen=True)
class ServerProcesses:
    """A server and its one worker."""

    server: int
    worker: int
    port: int

    def cpu_times(self) -> CpuTimes:
        """What they have used so far; waits until the worker is idle."""
        wire = _wire_seconds(self.port)
        return CpuTimes(_process_seconds(self.server), wire, _process_seconds(self.worker))


def find_processes(server: int, port: int) -> ServerProcesses:
    """Of an idle server with one loaded model. Raises SystemExit where that is not what is there."""
    workers = [pid for pid in _children(server) if b"headway.worker.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    if len(workers) != 1:
        raise SystemExit(f"the server {server} has {len(workers)} workers, it must have 1 (one loaded model)")
    return ServerProcesses(server, workers[0], port)


@contextmanager
def run_server(model: str, port: int, flags: Sequence[str], timeout_s: float = 300.0) -> Iterator[ServerProcesses]:
    """`headway serve MODEL` of this environment, ready; ended when the block is left."""
    command = [str(Path(sys.executable).with_name("headway")), "serve", model, "--port", str(port), *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _wait_until_ready(process, port, timeout_s)
            yield find_processes(process.pid, port)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            words = process.stderr.read()[-2000:].decode(errors="replace") if process.stderr else ""
            raise SystemExit(f"the server ended with status {process.returncode}:\n{words}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise SystemExit(f"the server was not ready within {timeout_s:.0f} s")


def _wire_seconds(port: int, timeout_s: float = 10.0) -> float:
    """Raises SystemExit where the worker does not become idle."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        time.sleep(0.05)  # the last step's word comes before the last figures
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read()
        found, running = WIRE.search(text), RUNNING.search(text)
        if found and running and float(running[1]) == 0:
            return float(found[1])
    raise SystemExit(f"the worker was not idle within {timeout_s:.0f} s")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _process_seconds(pid: int) -> float:
    return sum(_seconds(str(task / "schedstat")) for task in Path(f"/proc/{pid}/task").iterdir())


def _seconds(path: str) -> float:
    return int(Path(path).read_text().split()[0]) / 1e9
