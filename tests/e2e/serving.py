"""A `headway serve` process, for tests that call it from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

START_DEADLINE_S = 180.0
SETTLE_DEADLINE_S = 20.0
VERIFY = False
"""There is no TLS here, and each call would read all certificates for it, which takes 35 ms."""


@dataclass
class Server:
    """A running `headway serve`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=30, verify=VERIFY)

    def post(self, path: str, body: object, timeout: float = 120) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=timeout, verify=VERIFY)

    def metric(self, name: str) -> float:
        """The sum of a family's samples."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(name)]
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line[len(name)] in "{ "]
        assert values, f"there is no metric {name}"
        return sum(values)

    def worker(self) -> psutil.Process:
        """The model's process."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        workers = [child for child in children if any("headway.worker" in part for part in child.cmdline())]
        assert len(workers) == 1, [child.cmdline() for child in children]
        return workers[0]

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.describe()
            return self.get("/ready").status_code == 200

        wait_until(is_ready, deadline_s, self.describe)

    def check_idle(self) -> None:
        """Alive, no request open, no block referenced, none lost."""
        assert self.process.poll() is None, self.describe()

        def is_idle() -> bool:
            gauges = ("num_requests_running", "num_requests_waiting", "requests_open", "kv_cache_usage_perc")
            return all(self.metric(f"headway_{gauge}") == 0 for gauge in gauges)

        wait_until(is_idle, SETTLE_DEADLINE_S, lambda: self.get("/metrics").text)
        free, cached = self.metric("headway_kv_blocks_free"), self.metric("headway_kv_blocks_cached")
        assert free + cached == self.metric("headway_kv_blocks")

    def describe(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def wait_until(condition: Callable[[], bool], deadline_s: float, describe: Callable[[], str]) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            if condition():
                return
        except httpx2.TransportError:
            pass
        assert time.monotonic() < end, f"not within {deadline_s} s: {describe()}"
        time.sleep(0.05)


def start_server(tmp_path: Path, *flags: str, model: str = "demo") -> Server:
    """Starts `headway serve` on a free port of the system's choice; returns once it is ready."""
    log = tmp_path / "serve.log"
    command = [str(Path(sys.executable).with_name("headway")), "serve", model, "--port", "0", *flags]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))
    server = Server(process, "", log)

    def listens() -> bool:
        assert process.poll() is None, server.describe()
        words = [word for word in log.read_text().split() if word.startswith("http://127.0.0.1:")]
        server.url = words[0].rstrip("/.,") if words else ""
        return bool(words)

    try:
        wait_until(listens, START_DEADLINE_S, server.describe)
        server.url = "/".join(server.url.split("/")[:3])
        server.wait_ready()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return server


def stop_server(server: Server) -> int:
    """SIGTERM, as a service manager does it. Returns the exit code."""
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    try:
        return server.process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        server.process.kill()
        raise AssertionError(f"it did not end after SIGTERM: {server.describe()}") from None
