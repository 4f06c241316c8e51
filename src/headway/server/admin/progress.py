"""GET /admin/models/{id}/progress: how far a model's load is, as server-sent events, until it is ready or failed.

Looking loads nothing: a cold model's stream tells that, and goes on when somebody asks for the model. What changes
while a client does not read is told once, as it is then.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from headway.server.disconnect import run_watched
from headway.server.state import state_of
from headway.service.protocol import ModelCard

router = APIRouter(tags=["Health"])
HEARTBEAT_S = 15.0
"""How long nothing may be written: proxies end a connection that is silent for longer."""


@router.get("/admin/models/{model:path}/progress")
async def progress(request: Request) -> Response:
    """Events with state, phase, fraction and the seconds of each phase so far."""
    state = state_of(request)
    cards = state.service.watch(request.path_params["model"])
    first = await anext(cards)  # an unknown model is refused before the answer begins
    return ProgressStream(first, cards, write_timeout_s=state.config.slow_reader_timeout_s)


class ProgressStream(Response):
    """Sends each card as an event; ends with the cards, or when the client leaves or does not read."""

    def __init__(self, first: ModelCard, cards: AsyncIterator[ModelCard], *, write_timeout_s: float) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._first = first
        self._cards = cards
        self._write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises ClientGone."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await run_watched(receive, self._send_all(send), scope)

    async def _send_all(self, send: Send) -> None:
        coming: asyncio.Future[ModelCard] | None = None
        try:
            await self._write(send, make_event(self._first))
            while True:
                coming = coming or asyncio.ensure_future(anext(self._cards))
                await asyncio.wait({coming}, timeout=HEARTBEAT_S)
                if coming.done():
                    card, coming = await coming, None
                    await self._write(send, make_event(card))
                else:
                    await self._write(send, b":\n\n")
        except StopAsyncIteration:
            await self._write(send, b"", is_last=True)
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await coming

    async def _write(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        async with asyncio.timeout(self._write_timeout_s):
            await send({"type": "http.response.body", "body": data, "more_body": not is_last})


def make_event(card: ModelCard) -> bytes:
    """One event: what is known of the load now."""
    fields: dict[str, Any] = {
        "id": card.id,
        "state": card.state,
        "phase": card.phases[-1][0] if card.state == "loading" and card.phases else None,
        "fraction": card.fraction,
        "phases": [{"phase": phase, "seconds": round(seconds, 4)} for phase, seconds in card.phases],
        "error": None if card.error is None else card.error.message,
    }
    return b"event: progress\ndata: " + msgspec.json.encode(fields) + b"\n\n"
