"""The client of the benchmarks that ask over HTTP: one process, raw sockets, connections that are kept.

It shares the cores with the server that it asks, so it does as little as it can, the same for every server, and tells
what it took: processor time a request of its own, and of all that the server is made of.
"""

import os
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_READ_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)


class Connection:
    """One that is kept; the whole of an answer is read, and its body returned."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""

    def send(self, request: bytes) -> None:
        """The whole request."""
        self.socket.sendall(request)

    def read(self) -> bytes | None:
        """What came; the body once it is whole, None before. Raises SystemExit for another status than 200."""
        came = self.socket.recv(_READ_BYTES)
        if not came:
            raise SystemExit(f"the server ended the connection, after {self._data[:500]!r}")
        data = self._data = self._data + came if self._data else came
        start = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, start) if start > 3 else None
        if length is None:
            return None
        end = start + int(length[1])
        if len(data) < end:
            return None
        if not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered {data[:500]!r}")
        self._data = data[end:]
        return data[start:end]

    def ask(self, request: bytes) -> bytes:
        """Sends, and waits for the body."""
        self.send(request)
        while (body := self.read()) is None:
            continue
        return body


@dataclass(frozen=True)
class Load:
    """What many clients at once saw."""

    rate: float
    """Requests a second."""
    tail_s: float
    """The 99th percentile of an answer's time."""
    client_us: float
    """Processor time of this process a request."""
    server_us: float
    """Of the processes that this one has started, and those that they have."""

    @property
    def tail_ms(self) -> float:
        """tail_s in milliseconds."""
        return self.tail_s * 1e3


def requests_a_second(port: int, request: bytes, num_clients: int, seconds: float) -> Load:
    """Each client asks again as soon as it is answered."""
    poll = select.epoll()
    clients = {it.socket.fileno(): it for it in (Connection(port) for _ in range(num_clients))}
    sent_at: dict[int, float] = {}
    for fd, client in clients.items():
        poll.register(fd, select.EPOLLIN)
        client.ask(request)
    ours, theirs = time.process_time(), _seconds_of_descendants()
    begin = now = time.perf_counter()
    for fd, client in clients.items():
        sent_at[fd] = time.perf_counter()
        client.send(request)
    taken: list[float] = []
    while now < begin + seconds:
        for fd, _ in poll.poll(1.0):
            client = clients[fd]
            if client.read() is not None:
                now = time.perf_counter()
                taken.append(now - sent_at[fd])
                sent_at[fd] = now
                client.send(request)
        now = time.perf_counter()
    ours, theirs = time.process_time() - ours, _seconds_of_descendants() - theirs
    for client in clients.values():
        client.socket.close()
    tail_s = sorted(taken)[len(taken) * 99 // 100]
    return Load(len(taken) / (now - begin), tail_s, ours / len(taken) * 1e6, theirs / len(taken) * 1e6)


def _seconds_of_descendants() -> float:
    """Processor time of the processes below this one that are there now."""
    parents = dict(_parents())
    nanoseconds = 0
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() != pid:
            nanoseconds += sum(map(_nanoseconds, Path(f"/proc/{pid}/task").glob("*/schedstat")))
    return nanoseconds / 1e9


def _parents() -> Iterator[tuple[int, int]]:
    """Each process and its parent."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in parentheses, may hold anything.
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])


def _nanoseconds(schedstat: Path) -> int:
    try:
        return int(schedstat.read_text().split()[0])
    except (OSError, IndexError):
        return 0
