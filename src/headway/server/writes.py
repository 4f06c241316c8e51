"""What goes out on HTTP connections: all that one turn of the event loop writes, at its end in one go.

A write wakes its reader. Where the next one follows at once, readers on this machine (a proxy, a client of many
streams) find it without going to sleep between them, which costs both sides a good part of a small write.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from starlette.types import Message, Send

from headway._native import Outlet, StreamedBody, WriteQueue


def make_outlet(transport: asyncio.Transport) -> Outlet:
    """The way out of a connection, which nothing must pass by: the socket itself while its transport holds nothing
    back, unless that encrypts."""
    connection = transport.get_extra_info("socket")
    is_plain = connection is not None and transport.get_extra_info("sslcontext") is None
    return Outlet(transport, connection.fileno() if is_plain else -1)


class WriteBatch:
    """One event loop's writes, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue = WriteQueue()
        """Who writes to it directly calls schedule() where it says so."""

    def add(self, outlet: Outlet, data: bytes | None) -> None:
        """Writes it by the end of this turn; None: closes the connection then. Nothing if it is closing by then."""
        if self.queue.add_end(outlet) if data is None else self.queue.add(outlet, data):
            self.schedule()

    def schedule(self) -> None:
        """All that is in the queue goes out at the end of this turn."""
        self.loop.call_soon(self.queue.flush)


class BatchedTransport:
    """A transport whose writes, and whose closing after them, go out with the batch. All else is the transport's."""

    __slots__ = (
        "_add",
        "_is_closing",
        "_transport",
        "outlet",
    )

    def __init__(self, transport: asyncio.Transport, batch: WriteBatch) -> None:
        self.outlet = make_outlet(transport)
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

    __slots__ = ("_cycle", "_has_chunks", "_leave", "_loop", "body")

    def __init__(self, cycle: Any, outlet: Outlet, batch: WriteBatch) -> None:
        self._cycle = cycle
        self._has_chunks = cycle.scope["http_version"] != "1.0"
        if not self._has_chunks:
            cycle.send = _unframed(cycle, cycle.send)
        self.body = StreamedBody(batch.queue, outlet, is_chunked=self._has_chunks, schedule=batch.schedule)
        """See events.BodyWriter. Whether it can_write is found out once, and again after hold()."""
        self._loop = batch.loop
        self._leave: Callable[[], None] | None = None

    def try_write(self, data: bytes) -> bool:
        """See events.BodyWriter: as send() does it for a chunked body, where it need not wait."""
        if not self.body.can_write:
            cycle = self._cycle
            if cycle.disconnected:
                return True
            if cycle.chunked_encoding is not self._has_chunks or cycle.flow.write_paused or cycle.response_complete:
                return False
            self.body.can_write = True
        self.body.write(data)
        return True

    def has_room(self) -> bool:
        """See events.BodyWriter."""
        return not self._cycle.flow.write_paused

    def has_body(self) -> bool:
        """Whether all of the request's body has come."""
        return not self._cycle.more_body

    def hold(self) -> None:
        """Something changed: the reader is behind or gone, or the answer is complete."""
        self.body.can_write = False

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
