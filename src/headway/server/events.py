"""Server-sent events: a generation's chunks as bytes, and the rules of the end of a stream.

The 200 is sent once the service has accepted. Then each event is `data: JSON`, and the last one is always
`data: [DONE]`: after the last chunk, or after one `data: {"error": ...}` when the generation failed on its way. The
connection stays open for the next request. A client that leaves, or that reads nothing for too long, ends the
generation at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.errors import HeadwayError
from headway.observe.logs import get_logger
from headway.server.disconnect import run_watched
from headway.server.errors import error_body
from headway.server.generation import Generation

log = get_logger("headway.server")

DONE = b"data: [DONE]\n\n"
ABORT_EXTENSION = "headway.abort_connection"
"""In scope["extensions"], where the server offers it: a call that drops the connection, unsent bytes included."""

Events = Callable[[Generation], AsyncGenerator[bytes, None]]
"""Turns a generation into the bytes of its events, [DONE] left out. Each item is one or more whole events."""

_encoder = msgspec.json.Encoder()


def event(body: object) -> bytes:
    """One event. JSON has no raw line feeds, so one data line is enough."""
    return b"data: " + _encoder.encode(body) + b"\n\n"


class SlowReader(Exception):
    """The client has read nothing for the whole write time-out."""


class EventStream(Response):
    """The streamed answer to an accepted generation, which it owns and closes."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, events: Events, *, write_timeout_s: float) -> None:
        """
        Args:
            write_timeout_s: how long one write may wait for the client to read.
        """
        self.status_code = 200
        self.background = None
        self._generation = generation
        self._events = events
        self._write_timeout_s = write_timeout_s
        # A proxy that buffers would turn the stream into one late answer.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientGone if the client left."""
        async with self._generation:
            try:
                await run_watched(receive, self._send_all(send))
            except SlowReader:
                log.warning("a stream's reader was too slow", write_timeout_s=self._write_timeout_s)
                abort = scope.get("extensions", {}).get(ABORT_EXTENSION)
                if abort is not None:
                    abort()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # Each exception here belongs to this request alone: it is told in the stream, and the server goes on.
        try:
            async with aclosing(self._events(self._generation)) as events:
                async for data in events:
                    await self._write(send, data, more_body=True)
        except SlowReader:
            raise
        except HeadwayError as error:
            log.warning("a stream failed", code=error.code, error=error.message[:500])
            await self._write(send, event(error_body(error)), more_body=True)
        except Exception as error:
            log.exception("a stream failed")
            await self._write(send, event(error_body(error)), more_body=True)
        await self._generation.aclose()
        await self._write(send, DONE, more_body=False)

    async def _write(self, send: Send, data: bytes, *, more_body: bool) -> None:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": more_body})
        except TimeoutError:
            raise SlowReader from None
