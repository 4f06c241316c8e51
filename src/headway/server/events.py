"""Server-sent events: a generation's chunks as bytes, and the rules of the end of a stream.

The 200 is sent once the service has accepted. Then come an API's events (Chunks); what they end with, and how they tell
that the generation failed on its way, is the API's. The connection stays open for the next request. A client that
leaves, or that reads nothing for too long, ends the generation at once.

What is there for a stream at once is one write. Where the server offers WRITE_EXTENSION, a write that need not wait
goes straight to the connection, past the layers around the app (they have seen the head, and none of them changes a
body) and without a turn of the stream's own task, which sleeps until the end, or until a reader is behind. There, text
that is all there is to tell is put into its event and written by native code (worker/fast_path).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway._native import StreamedBody, TextEvents, TokenTimes
from headway.core.output import TextDelta
from headway.errors import HeadwayError
from headway.observe.logs import get_logger
from headway.server.disconnect import run_watched
from headway.server.errors import error_body
from headway.server.generation import Generation

log = get_logger("headway.server")

DONE = b"data: [DONE]\n\n"
ABORT_EXTENSION = "headway.abort_connection"
"""In scope["extensions"], where the server offers it: a call that drops the connection, unsent bytes included."""
WRITE_EXTENSION = "headway.body_writer"
"""In scope["extensions"], where the server offers it: a BodyWriter."""


class BodyWriter(Protocol):
    """Writes pieces of a body whose head was sent, and of which more follows."""

    def try_write(self, data: bytes) -> bool:
        """Writes it in this turn of the event loop, and before what is sent the usual way after it.

        False: nothing was done, it has to wait or to go the usual way.
        """
        ...

    def has_room(self) -> bool:
        """Whether the usual way would not wait either, now."""
        ...

    @property
    def body(self) -> StreamedBody | None:
        """Where native code may write, as try_write() does; None: nowhere."""
        ...


class Chunks(Protocol):
    """How one API writes one generation's events. Each call gives whole events, or nothing."""

    def begin(self) -> bytes:
        """Before the first delta."""
        ...

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """Of each delta, in order; `index` is its choice's."""
        ...

    def template(self, index: int) -> "EventTemplate | None":
        """What chunk() fills with the text of a delta of choice `index` that tells nothing else, until it is told of
        another one; an empty text is left out. None: it does more than that."""
        ...

    def end(self) -> bytes:
        """After the last delta: the end of the stream."""
        ...

    def fail(self, error: Exception) -> bytes:
        """The end of a stream that failed on its way, whatever was said before; what it tells is error_body()'s."""
        ...


Events = Callable[[Generation], Chunks]

_encoder = msgspec.json.Encoder()


def event(body: object) -> bytes:
    """One event. JSON has no raw line feeds, so one data line is enough."""
    return b"data: " + _encoder.encode(body) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    """One event with a name of its own."""
    return b"event: " + name.encode() + b"\n" + event(body)


def failed(error: Exception) -> bytes:
    """OpenAI's end of a stream that failed: one event {"error": ...}, and [DONE]."""
    return event(error_body(error)) + DONE


class EventTemplate:
    """Events that differ in one string only, written by putting the string between what is the same.

    Args:
        make_event: the event of a string. It is encoded once; the string must be in it once.
    """

    __slots__ = ("head", "tail")

    _MARK = "\x00headway\x00"  # control characters: escaped in JSON, and in no id, so that it is found again

    def __init__(self, make_event: Callable[[str], bytes]) -> None:
        self.head, _, self.tail = make_event(self._MARK).rpartition(_encoder.encode(self._MARK))

    def fill(self, text: str) -> bytes:
        """make_event(text)."""
        return self.head + _encoder.encode(text) + self.tail


class SlowReader(Exception):
    """The client has read nothing for the whole write time-out."""


# A proxy that buffers would turn the stream into one late answer.
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)


class EventStream(Response):
    """The streamed answer to an accepted generation, which it owns and closes."""

    def __init__(self, generation: Generation, events: Events, *, write_timeout_s: float) -> None:
        """
        Args:
            write_timeout_s: how long one write may wait for the client to read.
        """
        self.status_code = 200
        self.background = None
        self.raw_headers = list(_HEADERS)
        self._generation = generation
        self._events = events
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientGone if the client left."""
        extensions = scope.get("extensions") or {}
        writer = _Writer(send, extensions.get(WRITE_EXTENSION, _NO_WRITER), self._write_timeout_s)
        async with self._generation:
            try:
                await run_watched(receive, self._send_all(send, writer), scope)
            except SlowReader:
                log.warning("a stream's reader was too slow", write_timeout_s=self._write_timeout_s)
                abort = extensions.get(ABORT_EXTENSION)
                if abort is not None:
                    abort()

    async def _send_all(self, send: Send, writer: "_Writer") -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        chunks = self._events(self._generation)
        # Each exception here belongs to this request alone: it is told in the stream, and the server goes on.
        try:
            last = await self._send_chunks(chunks, writer)
        except SlowReader:
            raise
        except HeadwayError as error:
            log.warning("a stream failed", code=error.code, error=error.message[:500])
            last = chunks.fail(error)
        except Exception as error:
            log.exception("a stream failed")
            last = chunks.fail(error)
        await self._generation.aclose()
        await writer.write(last, more_body=False)

    async def _send_chunks(self, chunks: Chunks, writer: "_Writer") -> bytes:
        """All but what comes after the last delta, which it returns."""
        sink = _ChunkSink(chunks, writer, self._generation.num_choices)
        await writer.write(chunks.begin())
        try:
            await self._generation.feed(sink)
        except Exception:
            await sink.drain()
            raise
        return sink.take_pending() + chunks.end()


class _Writer:
    """A body's way out: at once where it need not wait, else by send, which waits for the client to read."""

    def __init__(self, send: Send, at_once: BodyWriter, timeout_s: float) -> None:
        self.at_once = at_once
        self._send = send
        self._timeout_s = timeout_s

    async def write(self, data: bytes, *, more_body: bool = True) -> None:
        """Raises SlowReader."""
        if more_body and not data:
            return
        message = {"type": "http.response.body", "body": data, "more_body": more_body}
        if self.at_once.has_room():
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise SlowReader from None


class _ChunkSink:
    """Writes deltas as chunks. What has to wait is kept until drain(), and nothing is taken meanwhile; what ends the
    last choice is kept too, for it goes out with the end of the stream."""

    __slots__ = ("_at_once", "_chunks", "_num_open", "_pending", "_writer")

    def __init__(self, chunks: Chunks, writer: _Writer, num_choices: int) -> None:
        self._chunks = chunks
        self._writer = writer
        self._at_once = writer.at_once
        self._num_open = num_choices
        self._pending = b""

    def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
        chunks = self._chunks
        if len(deltas) == 1:
            data = chunks.chunk(first + deltas[0].choice, deltas[0])
        else:
            data = b"".join([chunks.chunk(first + delta.choice, delta) for delta in deltas])
        if deltas[-1].finish_reason is not None and self._is_end(deltas):
            self._pending = data
            return True
        if not data or self._at_once.try_write(data):
            return True
        self._pending = data
        return False

    async def drain(self) -> None:
        """Raises SlowReader."""
        await self._writer.write(self.take_pending())

    def offer_events(self, index: int, times: TokenTimes) -> TextEvents | None:
        body, template = self._at_once.body, self._chunks.template(index)
        if body is None or template is None or self._pending:
            return None
        return TextEvents(body, template.head, template.tail, times)

    def take_pending(self) -> bytes:
        """What is kept, which is the caller's from now on."""
        data, self._pending = self._pending, b""
        return data

    def _is_end(self, deltas: Sequence[TextDelta]) -> bool:
        self._num_open -= sum(delta.finish_reason is not None for delta in deltas)
        return self._num_open <= 0


class _NoWriter:
    """Where the server has no WRITE_EXTENSION."""

    def try_write(self, data: bytes) -> bool:
        return False

    def has_room(self) -> bool:
        return False

    @property
    def body(self) -> None:
        return None


_NO_WRITER = _NoWriter()
