"""One HTTP connection: uvicorn's protocol, and what it leaves to be wished for against rude clients."""

import asyncio
from typing import Any, cast
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway.server.events import ABORT_EXTENSION, WRITE_EXTENSION

HEAD_TIMEOUT_S = 30.0
"""How long a request's line and headers may take, and a new connection's first byte."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers together."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with four additions.

    - The scope offers ABORT_EXTENSION: closing politely would wait for a reader who does not read.
    - The scope offers WRITE_EXTENSION: a piece of a body without the layers around the app.
    - When a client that has pipelined requests leaves, the request that is being answered is told, and not only the
      last one that was read.
    - A request's head has a size and a time limit.
    """

    _running: Any = None
    _head_timer: asyncio.TimerHandle | None = None
    _num_head_bytes = 0
    _num_pending_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head()

    def data_received(self, data: bytes) -> None:
        is_head = self._head_timer is not None
        super().data_received(data)
        # The parser keeps a header to itself until it is whole: what it may keep is counted here.
        if is_head and self._head_timer is not None and not self.transport.is_closing():
            self._num_pending_bytes += len(data)
            if self._num_pending_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's head is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head()
        extensions: dict[str, Any] = {ABORT_EXTENSION: self.transport.abort}
        cast(dict[str, Any], self.scope)["extensions"] = extensions

    def on_url(self, url: bytes) -> None:
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        cycle.scope["extensions"][WRITE_EXTENSION] = CycleWriter(cycle, batch_of(self.loop))
        super()._start_asgi_task(cycle, app)

    def _start_head(self) -> None:
        self._stop_head()
        self._num_head_bytes = self._num_pending_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _stop_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _count_head(self, data: bytes) -> None:
        """Raises, which the parser turns into a 400 and the end of the connection."""
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the request's head is too long")


class CycleWriter:
    """WRITE_EXTENSION: as uvicorn's RequestResponseCycle.send does it for a chunked body, where it need not wait."""

    __slots__ = ("_batch", "_cycle")

    def __init__(self, cycle: Any, batch: "WriteBatch") -> None:
        self._cycle = cycle
        self._batch = batch

    def try_write(self, data: bytes) -> bool:
        """See events.BodyWriter."""
        cycle = self._cycle
        if cycle.disconnected:
            return True
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.response_complete:
            return False
        self._batch.add(cycle.transport, b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def flush(self) -> None:
        """See events.BodyWriter."""
        self._batch.flush()


class WriteBatch:
    """What one turn of the event loop writes to all connections, written at its end in one go.

    A write wakes its reader. Where the next one follows at once, readers on this machine (a proxy, a client of many
    streams) find it without going to sleep between them, which costs both sides a good part of a small write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pieces: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes it by the end of this turn."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append((transport, data))

    def flush(self) -> None:
        """Writes all now."""
        pieces, self._pieces = self._pieces, []
        for transport, data in pieces:
            if not transport.is_closing():
                transport.write(data)


_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, WriteBatch] = WeakKeyDictionary()


def batch_of(loop: asyncio.AbstractEventLoop) -> WriteBatch:
    """The loop's."""
    found = _batches.get(loop)
    if found is None:
        found = _batches[loop] = WriteBatch(loop)
    return found
