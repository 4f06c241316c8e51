"""One HTTP connection: uvicorn's protocol, and what it leaves to be wished for against rude clients."""

import asyncio
import sys
import time
from http import HTTPStatus
from typing import Any, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headway._native import DoorConnection
from headway.server.disconnect import WATCH_EXTENSION
from headway.server.errors import ErrorBody, ErrorDetail, json_response
from headway.server.events import ABORT_EXTENSION, WRITE_EXTENSION
from headway.server.middleware import BODY_EXTENSION
from headway.server.native_door import NativeDoor
from headway.server.writes import BatchedTransport, Exchange, batch_of
from headway.worker.given_answer import GIVEN_ANSWER, GivenAnswer, Outcome

HEAD_TIMEOUT_S = 30.0
"""How long a request's line and headers may take, and a new connection's first byte."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers together."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with eleven additions.

    - The scope offers ABORT_EXTENSION: closing politely would wait for a reader who does not read.
    - The scope offers WRITE_EXTENSION: a piece of a body without the layers around the app.
    - The scope offers WATCH_EXTENSION: a client's leaving without a task that waits for it.
    - The scope offers BODY_EXTENSION: whether there is anything to wait for.
    - A stream to an HTTP/1.0 client (as nginx can be, before a server) has no chunks and ends with the connection.
    - What one turn of the event loop writes goes out in one go (writes.py).
    - When a client that has pipelined requests leaves, the request that is being answered is told, and not only the
      last one that was read.
    - A request's head has a size and a time limit.
    - What is no HTTP is answered in the shape of all other errors.
    - A request that offers another protocol (Java's client offers h2c with each POST) is answered over this one, as if
      it had not: the parser leaves its body unread.
    - Requests that are plain go to the native door (native_door.py), which answers them.
    """

    _running: Any = None
    _exchange: Exchange | None = None
    """The running request's."""
    _head_timer: asyncio.TimerHandle | None = None
    _num_head_bytes = 0
    _num_pending_bytes = 0
    _received = b""
    _is_head_too_long = False
    _native: DoorConnection | None = None
    """Once there was a request that the native door may know."""
    _is_in_request = False
    """The parser has begun to read one, and not come to its end."""
    _given: GivenAnswer | None = None
    """What the next request's model has said already."""

    def __init__(self, *arguments: Any, native_door: NativeDoor | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._native_door = native_door

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        batched = BatchedTransport(transport, batch_of(self.loop))
        self._outlet = batched.outlet
        super().connection_made(cast(Any, batched))
        self._start_head()

    def data_received(self, data: bytes) -> None:
        native = self._native
        if native is None and self._native_door is not None:
            native = self._native = self._native_door.connect(self, self._outlet)
        if native is None or not (native.is_busy or self._is_between_requests()):
            self.feed(data)
            return
        left = native.take(data)
        if left is not None:
            self.feed(left)
        elif native.is_busy:
            if native.num_bytes_behind > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            if self.timeout_keep_alive_task is None:
                # From here on it looks for itself whether the connection is idle.
                self._stop_head()
                self._start_keep_alive(self.timeout_keep_alive)

    def feed(self, data: bytes) -> None:
        """Bytes that go the Python way: to uvicorn's parser."""
        is_head = self._head_timer is not None
        self._received = data
        super().data_received(data)
        self._received = b""
        # The parser keeps a header to itself until it is whole: what it may keep is counted here.
        if is_head and self._head_timer is not None and not self.transport.is_closing():
            self._num_pending_bytes += len(data)
            if self._num_pending_bytes > MAX_HEAD_BYTES:
                self._is_head_too_long = True
                self.send_400_response("")
        elif self._head_timer is None and self.timeout_keep_alive_task is None and self._is_between_requests():
            self._start_head()  # empty lines, which ended the time that the connection may be idle

    def _is_between_requests(self) -> bool:
        """Whether the next one may go another way than the parser's."""
        if self._is_in_request or self.pipeline or self.transport.is_closing() or self.flow.write_paused:
            return False
        return self.cycle is None or self.cycle.response_complete

    def go_on(self) -> None:
        """The native door has answered, and more came meanwhile. Called from native code, which goes on itself."""
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        native = self._native
        if native is not None and not self.transport.is_closing():
            self.flow.resume_reading()
            self.data_received(native.release())
            if native.closes:
                self.shutdown()

    def answer_in_python(self, request: bytes, outcome: Outcome | None, arrived_s: float) -> None:
        """A request that the native door began with, and what came behind it: the model's answer is no plain one.

        Also where the connection is closing, so that the request is counted as it would have been.
        """
        self.flow.resume_reading()
        self._given = GivenAnswer(outcome, arrived_s)
        self.feed(request)
        if self._native is not None and self._native.closes:
            self.shutdown()

    def shutdown(self) -> None:
        native = self._native
        if native is not None and native.is_busy:
            native.close_after()
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        native = self._native
        if native is None:
            super().timeout_keep_alive_handler()
            return
        idle_s = 0.0 if native.is_busy or native.is_gathering else time.monotonic() - native.last_answer_s
        if idle_s < self.timeout_keep_alive:
            self._start_keep_alive(self.timeout_keep_alive - idle_s)
        else:
            super().timeout_keep_alive_handler()

    def _start_keep_alive(self, after_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(after_s, self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        self._is_in_request = True
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
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._is_in_request = False
            super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Called while the parser's HttpParserUpgrade is handled, whose argument is where the head ended."""
        offered = sys.exception()
        method = self.parser.get_method()
        if method == b"CONNECT" or not isinstance(offered, HttpParserUpgrade):
            self.send_400_response("there is no tunnel here: CONNECT is for proxies")
            return
        rest = self._received[offered.args[0] :]
        head = [method, b" ", self.url, b" HTTP/", self.parser.get_http_version().encode(), b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = HttpRequestParser(self)
        self.feed(b"".join(head) + b"\r\n" + rest)

    def send_400_response(self, msg: str) -> None:
        """Also a 431; the end of the connection."""
        status, code = HTTPStatus.BAD_REQUEST, "invalid_http"
        if self._is_head_too_long:
            status, code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large"
            msg = f"the request's line and headers have over {MAX_HEAD_BYTES} bytes: send less"
        error = ErrorDetail(msg, "invalid_request_error", None, code)
        answer = json_response(ErrorBody(error), status=status, headers={"connection": "close"})
        head = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
        head += [b"%b: %b" % header for header in answer.raw_headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(answer.body))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head()
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
            if self._exchange is not None:
                self._exchange.lose_client()
        self._outlet.lose()
        self._lose_native()
        super().connection_lost(exc)

    def _lose_native(self) -> None:
        native, self._native = self._native, None
        lost = None if native is None else native.lose()
        if lost is not None and self._native_door is not None:
            self._native_door.count_lost(lost)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        self._native_door = None

    def pause_writing(self) -> None:
        self._hold_exchange()
        super().pause_writing()

    def on_response_complete(self) -> None:
        self._hold_exchange()
        super().on_response_complete()

    def _hold_exchange(self) -> None:
        if self._exchange is not None:
            self._exchange.hold()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        self._exchange = Exchange(cycle, self._outlet, batch_of(self.loop))
        cycle.scope["extensions"] |= {
            WRITE_EXTENSION: self._exchange,
            WATCH_EXTENSION: self._exchange.watch,
            BODY_EXTENSION: self._exchange.has_body,
        }
        given, self._given = self._given, None
        if given is GIVEN_ANSWER.get():  # both None, as nearly always
            super()._start_asgi_task(cycle, app)
            return
        token = GIVEN_ANSWER.set(given)
        try:
            super()._start_asgi_task(cycle, app)
        finally:
            GIVEN_ANSWER.reset(token)

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
            self._is_head_too_long = True
            raise ValueError("the request's head is too long")
