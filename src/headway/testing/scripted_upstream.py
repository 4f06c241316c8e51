"""ScriptedUpstream: another server, which answers as a test says, byte by byte; and what it was asked.

    async with ScriptedUpstream() as upstream:
        upstream.add("/v1/chat/completions", Answer(parts=[sse(chunk), gate, sse("[DONE]")]))
        ...                      # a model whose options.url is f"{upstream.url}/v1"
        upstream.requests[0].json

Answers of a route come in the order of add(); the last one stays.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Part = bytes | asyncio.Event | Literal["reset"]
"""Bytes of the body; an event is waited for; reset breaks the connection."""


def sse(data: object) -> bytes:
    """An event; what is no text is told as JSON."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


@dataclass(frozen=True)
class Answer:
    """What a request gets. Without a content-length the body ends with the connection, or as chunks."""

    parts: Sequence[Part] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    before_head: asyncio.Event | None = None
    """Waited for before anything is sent."""
    is_reset: bool = False
    """The connection breaks before anything is sent."""

    @classmethod
    def of_json(cls, body: object, status: int = 200, **headers: str) -> "Answer":
        """A JSON body."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls([json.dumps(body).encode()], status, named, "application/json")


@dataclass
class Received:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes
    is_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the client closed the connection before the answer's end."""

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


class ScriptedUpstream:
    """Listens on a free port of 127.0.0.1 from `async with` on."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.url = ""
        self.num_connections = 0
        """Since its beginning."""
        self._answers: dict[str, list[Answer]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    def add(self, path: str, *answers: Answer) -> None:
        """What the next requests of the route get."""
        self._answers.setdefault(path, []).extend(answers)

    def add_models(self, *names: str) -> None:
        """A list of models under /v1."""
        self.add("/v1/models", Answer.of_json({"object": "list", "data": [{"id": name} for name in names]}))

    async def __aenter__(self) -> "ScriptedUpstream":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Listens no more, and breaks what is open."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def _connect(self) -> "_Connection":
        self.num_connections += 1
        return _Connection(self._connections, self._take)

    def _take(self, request: Received) -> Answer:
        self.requests.append(request)
        answers = self._answers.get(request.path)
        if not answers:
            return Answer.of_json({"error": f"no route {request.path}"}, 404)
        return answers.pop(0) if len(answers) > 1 else answers[0]


class _Connection(asyncio.Protocol):
    """One client's: a request, its answer, the next one."""

    def __init__(self, all_open: "set[_Connection]", take: Callable[[Received], Answer]) -> None:
        self._all_open = all_open
        self._take = take
        self._buffer = b""
        self._open: Received | None = None
        self._sending: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    def abort(self) -> None:
        """Breaks it."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._all_open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._all_open.discard(self)
        if self._open is not None:
            self._open.is_left.set()
        if self._sending is not None:
            self._sending.cancel()

    def pause_writing(self) -> None:
        self._is_writable.clear()

    def resume_writing(self) -> None:
        self._is_writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end or self._open is not None:
            return
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) >= length:
            self._buffer = rest[length:]
            self._open = Received(method, path, headers, rest[:length])
            self._sending = asyncio.create_task(self._send(self._take(self._open)))

    async def _send(self, answer: Answer) -> None:
        if answer.before_head is not None:
            await answer.before_head.wait()
        if answer.is_reset:
            self.abort()
            return
        headers = {"content-type": answer.content_type, "transfer-encoding": "chunked", **answer.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._write(f"HTTP/1.1 {answer.status} Status\r\n{head}\r\n".encode())
        for part in answer.parts:
            if part == "reset":
                self.abort()
                return
            if isinstance(part, asyncio.Event):
                await part.wait()
            elif isinstance(part, bytes) and part:
                self._write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await self._is_writable.wait()
        self._write(b"0\r\n\r\n")
        self._open = None
        self.data_received(b"")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
