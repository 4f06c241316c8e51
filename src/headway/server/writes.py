"""What goes out on HTTP connections: all that one turn of the event loop writes, at its end in one go.

A write wakes its reader. Where the next one follows at once, readers on this machine (a proxy, a client of many
streams) find it without going to sleep between them, which costs both sides a good part of a small write.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from starlette.types import Message, Send

_CHUNK_HEADS = tuple(b"%x\r\n" % size for size in range(1024))
"""Of chunks of so many bytes: a token's are small, and a head made for each would cost as much as the chunk."""


class Outlet:
    """A connection's way out: the socket itself while its transport holds nothing back, which costs less than the
    transport's own way there; else the transport, which keeps what the socket does not take and tells of a reader who
    is behind."""

    __slots__ = ("_fd", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        connection = transport.get_extra_info("socket")
        is_plain = connection is not None and transport.get_extra_info("sslcontext") is None
        self._fd: int | None = connection.fileno() if is_plain else None

    def write(self, data: bytes) -> None:
        """After all that was written before; nothing if the connection is closed or being closed."""
        transport, fd = self._transport, self._fd
        if transport.is_closing():
            return
        if fd is None or transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            num_written = os.write(fd, data)
        except OSError:  # it takes nothing now, or the client is gone: the transport waits, or finds out
            num_written = 0
        if num_written < len(data):
            transport.write(data[num_written:])

    def close(self) -> None:
        """After all that was written."""
        if not self._transport.is_closing():
            self._transport.close()


class WriteBatch:
    """One event loop's writes, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._pieces: list[tuple[Outlet, bytes | None]] = []

    def add(self, outlet: Outlet, data: bytes | None) -> None:
        """Writes it by the end of this turn; None: closes the connection then."""
        if not self._pieces:
            self.loop.call_soon(self._flush)
        self._pieces.append((outlet, data))

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        for outlet, data in pieces:
            if data is None:
                outlet.close()
            else:
                outlet.write(data)


class BatchedTransport:
    """A transport whose writes, and whose closing after them, go out with the batch. All else is the transport's."""

    __slots__ = (
        "_add",
        "_is_closing",
        "_transport",
        "outlet",
    )

    def __init__(self, transport: asyncio.Transport, batch: WriteBatch) -> None:
        self.outlet = Outlet(transport)
        """Where the batch writes to."""
        self._transport = transport
        self._add = batch.add
        self._is_closing = False

    def write(self, data: bytes) -> None:
        """By the end of this turn."""
        if not self._is_closing:
            self._add(self.outlet, data)

    def close(self) -> None:
        """After what was written."""
        if not self._is_closing:
            self._is_closing = True
            self._add(self.outlet, None)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be at the end of this turn."""
        return self._is_closing or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Exchange:
    """One request and its answer, as seen past the layers around the app: WRITE_EXTENSION, WATCH_EXTENSION and
    BODY_EXTENSION.

    Args:
        cycle: uvicorn's RequestResponseCycle, whose send() and receive() these stand for.
        outlet: the connection's.

    HTTP/1.0 has no chunks: a body of unknown length ends with the connection there.
    """

    __slots__ = ("_batch", "_can_write", "_cycle", "_has_chunks", "_leave", "_loop", "_outlet")

    def __init__(self, cycle: Any, outlet: Outlet, batch: WriteBatch) -> None:
        self._cycle = cycle
        self._outlet = outlet
        self._batch = batch
        self._has_chunks = cycle.scope["http_version"] != "1.0"
        if not self._has_chunks:
            cycle.send = _unframed(cycle, cycle.send)
        self._can_write = False
        """A piece may be written: found out once, and again after hold()."""
        self._loop = batch.loop
        self._leave: Callable[[], None] | None = None

    def try_write(self, data: bytes) -> bool:
        """See events.BodyWriter: as send() does it for a chunked body, where it need not wait."""
        if not self._can_write:
            cycle = self._cycle
            if cycle.disconnected:
                return True
            if cycle.chunked_encoding is not self._has_chunks or cycle.flow.write_paused or cycle.response_complete:
                return False
            self._can_write = True
        self._batch.add(self._outlet, _chunk(data) if self._has_chunks else data)
        return True

    def has_room(self) -> bool:
        """See events.BodyWriter."""
        return not self._cycle.flow.write_paused

    def has_body(self) -> bool:
        """Whether all of the request's body has come."""
        return not self._cycle.more_body

    def hold(self) -> None:
        """Something changed: the reader is behind or gone, or the answer is complete."""
        self._can_write = False

    def watch(self, leave: Callable[[], None] | None) -> None:
        """See disconnect.Watch: as receive() does it once the body was read."""
        self._leave = leave
        if leave is None:
            return
        self._cycle.flow.resume_reading()
        if self._cycle.disconnected:
            self._loop.call_soon(self.lose_client)

    def lose_client(self) -> None:
        """The client has left; called from the event loop."""
        self.hold()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


def _chunk(data: bytes) -> bytes:
    """A piece of a chunked body (RFC 9112, 7.1)."""
    size = len(data)
    return (_CHUNK_HEADS[size] if size < len(_CHUNK_HEADS) else b"%x\r\n" % size) + data + b"\r\n"


def _unframed(cycle: Any, send: Send) -> Send:
    """A cycle's send() without chunks. It counts what is sent against the announced length: where none was announced,
    each piece is the whole."""
    is_bounded = True

    async def send_unframed(message: Message) -> None:
        nonlocal is_bounded
        if message["type"] == "http.response.start":
            is_bounded = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not is_bounded:
                cycle.chunked_encoding = False
        elif not is_bounded:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_unframed


_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, WriteBatch] = WeakKeyDictionary()


def batch_of(loop: asyncio.AbstractEventLoop) -> WriteBatch:
    """The loop's."""
    found = _batches.get(loop)
    if found is None:
        found = _batches[loop] = WriteBatch(loop)
    return found
