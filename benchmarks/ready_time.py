"""How long a server takes from exec to its first 200 on /ready: starts it again and again, asks every few milliseconds.

The model's file is read once before, so that it is in the page cache. A line a start, with when the server listened,
when its worker's process was there, and the processor time of both; then the medians. --at-most is a bar on the median.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

POLL_S = 0.01
DEADLINE_S = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")
_GET = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since exec, and seconds of processor time until ready."""

    worker_s: float
    """The worker's process was there."""
    listening_s: float
    """/ready was answered for the first time."""
    ready_s: float
    """It was answered with a 200."""
    server_cpu_s: float
    worker_cpu_s: float


def main() -> int:
    """The exit code: 1 if the median is over the bar."""
    options = _parse()
    _read_once(options.model)
    starts = [measure(options) for _ in range(options.repeat)]
    medians = Start(*(statistics.median(values) for values in zip(*map(astuple, starts), strict=True)))
    print("start   " + "  ".join(f"{field.name:>12}" for field in fields(Start)))
    for name, start in [*enumerate(starts, 1), ("median", medians)]:
        print(f"{name!s:<8}" + "  ".join(f"{value:12.3f}" for value in astuple(start)))
    if options.at_most is not None and medians.ready_s > options.at_most:
        print(f"FAILED: ready after {medians.ready_s:.2f} s, the bar is {options.at_most:.2f} s")
        return 1
    return 0


def measure(options: argparse.Namespace) -> Start:
    """One start of a server, which is ended again."""
    port = _free_port()
    command = [options.headway, "serve", options.model, "--port", str(port), *options.flags]
    started_at = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        return _watch(process, port, started_at)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _watch(process: "subprocess.Popen[bytes]", port: int, started_at: float) -> Start:
    worker: int | None = None
    worker_s = listening_s = 0.0
    while (now := time.monotonic() - started_at) < DEADLINE_S:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with exit code {process.returncode}")
        if worker is None and (worker := next(_children(process.pid), None)):
            worker_s = now
        status = _status(port)
        if status is not None and not listening_s:
            listening_s = time.monotonic() - started_at
        if status == 200:
            ready_s = time.monotonic() - started_at
            return Start(worker_s, listening_s, ready_s, _cpu_s(process.pid), _cpu_s(worker) if worker else 0.0)
        time.sleep(POLL_S)
    raise SystemExit(f"not ready within {DEADLINE_S:.0f} s")


def _status(port: int) -> int | None:
    """Of GET /ready; None: nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(_GET)
            words = connection.recv(64).split(None, 2)
        return int(words[1]) if len(words) > 1 else None
    except OSError:
        return None


def _children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, path.read_text().split())
        except OSError:
            continue


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _read_once(model: str) -> None:
    path = Path(model)
    if not path.exists():  # demo, or a hub id: the first start reads it
        return
    for file in [path] if path.is_file() else path.iterdir():
        if file.is_file():
            with file.open("rb") as source:
                while source.read(1 << 24):
                    pass


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--headway", default=str(Path(sys.executable).with_name("headway")), help="the command")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--at-most", type=float, metavar="SECONDS", help="the bar on the median")
    parser.add_argument("flags", nargs="*", help="flags of serve, after --")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
