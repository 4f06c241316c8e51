"""A client of our own for streamed completions: raw sockets, one thread, as little work an event as there can be.

A request is written as bytes, and of an answer only the events are counted (their "data: " marks); the last bytes are
kept for the usage. The client's own processor time is in the result, so that it can be taken off.
"""

import json
import random
import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

MARK = b"\ndata: "
MODEL_NAME = "bench"
"""Served under this name."""
TAIL_BYTES = 1024
READ_BYTES = 256 * 1024
TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


def make_request(port: int, prompt: Sequence[int], output: int) -> bytes:
    """POST /v1/completions with token ids, greedy, `output` tokens whatever they are, streamed, with usage."""
    body = {
        "model": MODEL_NAME,
        "prompt": list(prompt),
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    payload = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode() + payload


@dataclass
class Stream:
    """One answer as it comes in."""

    connection: socket.socket
    started: float
    tail: bytes = b""
    arrivals: list[float] = field(default_factory=list)
    """Times (perf_counter) at which events came, one a read."""
    events: int = 0
    """With the ones that carry no text: the finish, the usage, [DONE]."""

    def feed(self, data: bytes, now: float) -> None:
        """Counts the events of what was read, over the seams of reads too."""
        joined = self.tail[-len(MARK) + 1 :] + data
        count = joined.count(MARK)
        if count:
            self.events += count
            self.arrivals.append(now)
        self.tail = (self.tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data[-TAIL_BYTES:]

    def tokens(self) -> int:
        """What the usage says. Raises SystemExit where the answer is not a whole one."""
        found = TOKENS.search(self.tail)
        if not found or b"[DONE]" not in self.tail:
            raise SystemExit(f"an answer is not whole; its end: {self.tail[-400:].decode(errors='replace')}")
        return int(found[1])


@dataclass(frozen=True)
class Answers:
    """Of requests that were sent together."""

    seconds: float
    client_cpu: float
    streams: tuple[Stream, ...]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(stream.tokens() for stream in self.streams)

    @property
    def events(self) -> int:
        """Of all answers."""
        return sum(stream.events for stream in self.streams)


def open_stream(port: int, request: bytes) -> Stream:
    """Connects and sends."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started = time.perf_counter()
    connection.sendall(request)
    connection.setblocking(False)
    return Stream(connection, started)


def stream_all(port: int, requests: Sequence[bytes]) -> Answers:
    """Sends all at once and reads until every answer has ended."""
    cpu, start = time.process_time(), time.perf_counter()
    streams = tuple(open_stream(port, request) for request in requests)
    with selectors.EpollSelector() as selector:
        for stream in streams:
            selector.register(stream.connection, selectors.EVENT_READ, stream)
        while selector.get_map():
            read_ready(selector)
    return Answers(time.perf_counter() - start, time.process_time() - cpu, streams)


def read_ready(selector: selectors.EpollSelector, timeout_s: float | None = None) -> None:
    """Reads what has come, waiting at most so long; streams that have ended are closed and taken out."""
    for key, _ in selector.select(timeout_s):
        stream: Stream = key.data
        data = stream.connection.recv(READ_BYTES)
        if data:
            stream.feed(data, time.perf_counter())
        else:
            selector.unregister(stream.connection)
            stream.connection.close()


class RunningStreams:
    """Streams that run all the time, and what else is sent beside them, on one thread.

    Args:
        seed: of the prompts, random tokens.
        output_tokens: of each stream: more than it will get to.
    """

    def __init__(self, port: int, seed: str, num_streams: int, prompt_tokens: int, output_tokens: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._selector = selectors.EpollSelector()
        self._sent: list[Stream] = []
        self.streams = [self.send(prompt_tokens, output_tokens) for _ in range(num_streams)]

    def send(self, prompt_tokens: int, output_tokens: int) -> Stream:
        """One more request."""
        prompt = [self._random.randrange(1000, 40000) for _ in range(prompt_tokens)]
        stream = open_stream(self._port, make_request(self._port, prompt, output_tokens))
        self._selector.register(stream.connection, selectors.EVENT_READ, stream)
        self._sent.append(stream)
        return stream

    def read(self, timeout_s: float) -> None:
        """What has come, or comes within the time."""
        read_ready(self._selector, timeout_s)

    def read_until(self, end: float) -> None:
        """Reads on until that time (perf_counter)."""
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def close(self) -> None:
        """Hangs up."""
        for stream in self._sent:
            stream.connection.close()
        self._selector.close()
