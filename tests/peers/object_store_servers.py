"""Servers of the protocols of S3 and Google Cloud Storage, and a line to them that can break."""

import contextlib
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from peers.frameworks import python_of

ENVIRONMENT = "object-stores"
_SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
}
"""moto lets nobody else replace an object; it looks no closer, unless it is told to."""


@dataclass
class StoreServer:
    """One server, filled over plain HTTP."""

    url: str
    kind: str

    def put(self, name: str, content: bytes) -> None:
        """bucket/key, in either kind."""
        bucket, _, key = name.partition("/")
        if self.kind == "s3":
            answer = httpx2.put(f"{self.url}/{bucket}/{key}", content=content, headers=_SIGNED)
        else:
            place = f"{self.url}/upload/storage/v1/b/{bucket}/o"
            answer = httpx2.post(place, params={"uploadType": "media", "name": key}, content=content)
        assert answer.is_success, answer.text

    def make_bucket(self, name: str) -> None:
        if self.kind == "s3":
            answer = httpx2.put(f"{self.url}/{name}", headers=_SIGNED)
        else:
            answer = httpx2.post(f"{self.url}/storage/v1/b", json={"name": name})
        assert answer.is_success, answer.text


@contextmanager
def running(kind: str) -> Iterator[StoreServer]:
    """moto, or gcp-storage-emulator, in a process of its own."""
    port = _free_port()
    python = python_of(ENVIRONMENT)
    if kind == "s3":
        command = [str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    else:
        program = str(python.with_name("gcp-storage-emulator"))
        command = [program, "start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield StoreServer(f"http://127.0.0.1:{port}", kind)
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        assert process.poll() is None, "the server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


class BreakingLine(socketserver.ThreadingTCPServer):
    """A way to a server on which the next `num_cuts` connections end when they have answered `after_bytes`."""

    daemon_threads = True

    def __init__(self, server_port: int) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.server_port = server_port
        self.after_bytes = 0
        self.num_cuts = 0
        self._open: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def finish_request(self, request: Any, client_address: Any) -> None:
        with socket.create_connection(("127.0.0.1", self.server_port)) as there:
            ends = {request, there}
            self._open |= ends
            threading.Thread(target=_pump, args=(request, there), daemon=True).start()
            num_bytes = 0
            with contextlib.suppress(OSError):
                while data := there.recv(1 << 16):
                    num_bytes += len(data)
                    if self.num_cuts and num_bytes > self.after_bytes:
                        self.num_cuts -= 1
                        break
                    request.sendall(data)
            _end(ends)
            self._open -= ends

    def stop(self) -> None:
        self.shutdown()
        _end(set(self._open))
        self.server_close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


def _end(ends: set[socket.socket]) -> None:
    for each in ends:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def breaking_line(server_port: int) -> Iterator[BreakingLine]:
    """Listens in a thread."""
    line = BreakingLine(server_port)
    thread = threading.Thread(target=line.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield line
    finally:
        line.stop()
        thread.join(30)
