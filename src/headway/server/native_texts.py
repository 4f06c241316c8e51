"""An encoder's texts that came natively (native_door.py): their ids are made, and the encoder is asked, in Python; what
is around that, a request's head and body and the answer's, is native."""

import asyncio
import functools
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING

import structlog

from headway._native import DoorConnection
from headway.core.embedding import EmbedRequest
from headway.core.request import TextPrompt
from headway.errors import ModelNotFound
from headway.service.standing_lease import LeasingService, StandingLease

if TYPE_CHECKING:
    from headway.server.state import ServerState


class NativeTexts:
    """Of one encoder, by the name that it is asked by; all on the event loop's thread."""

    def __init__(self, state: "ServerState", service: LeasingService, model: str, lease: StandingLease | None) -> None:
        """`lease`: with which texts go to the encoder's process as they are; None: they do not."""
        self._state = state
        self._service = service
        self._model = model
        self._lease = lease
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, connection: DoorConnection, request_id: str, texts: list[str]) -> Callable[[], object] | None:
        """Begins with a request; whom to call when its client leaves. None: its model has to be waited for, or is
        another one by now."""
        try:
            if self._lease is not None and not self._lease.is_current:
                return None
            if self._state.is_draining or not self._service.has_at_once(self._model):
                return None
        except ModelNotFound:
            return None
        task = asyncio.ensure_future(self._answer(connection, request_id, texts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return functools.partial(task.cancel)

    async def _answer(self, connection: DoorConnection, request_id: str, texts: list[str]) -> None:
        """As server/basic/predict has it; what is no vectors, or can not be told, is told there."""
        state, arrived_s = self._state, self._state.clock.now()
        structlog.contextvars.bind_contextvars(request_id=request_id)  # of this task alone
        end = functools.partial(state.metrics.encoders.end, self._model, "embeddings")
        inputs = [TextPrompt(text) for text in texts]
        try:
            made = await state.service.embed(
                EmbedRequest(request_id=f"embd-{token_hex(16)}", model=self._model, inputs=inputs)
            )
        except asyncio.CancelledError:
            end("abort", num_tokens=0, seconds=state.clock.now() - arrived_s)
            raise
        except Exception as error:  # whatever it is, it is raised again where the request goes on
            connection.hand_over(error)
            return
        if connection.finish(made.vectors):
            end("success", num_tokens=made.num_tokens, seconds=state.clock.now() - arrived_s)
        else:
            connection.hand_over(made)
