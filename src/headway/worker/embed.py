"""EmbedBatch: the texts of one request to an encoder while they are open at the worker (client.WorkerClient.embed).

To the client each text is a stream as a generation's is (stream.RequestStream), which ends with its vector.
"""

import asyncio
from collections.abc import Callable

import headway_wire as wire
from headway.core.output import Usage
from headway.errors import CapacityError, HeadwayError, ShuttingDown, from_wire
from headway.worker.embed_prompt import PreparedText


class EmbedBatch:
    """Texts that succeed or fail together. On the event loop's thread."""

    def __init__(self, num_texts: int, on_settled: Callable[[bool], None], send: Callable[[wire.Down], None]) -> None:
        self.vectors: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        """Done with all vectors, or with the first error."""
        self._made: list[bytes | None] = [None] * num_texts
        self._open: dict[str, EmbedStream] = {}
        self._num_missing = num_texts
        self._has_served = True
        self._is_closed = False
        self._on_settled = on_settled
        self._send = send

    def enter(self, stream: "EmbedStream") -> None:
        """A text is on its way."""
        self._open[stream.wire_id] = stream

    def leave(self, stream: "EmbedStream") -> None:
        """The worker owes it nothing more."""
        self._open.pop(stream.wire_id, None)

    def put(self, index: int, vector: bytes) -> None:
        """The vector of a text."""
        self._made[index] = vector
        self._num_missing -= 1
        if not self._num_missing and not self.vectors.done():
            self.vectors.set_result([made for made in self._made if made is not None])

    def fail(self, error: HeadwayError) -> None:
        """Ends the request, if nothing did before."""
        if not self.vectors.done():
            self.vectors.set_exception(error)
            self.vectors.exception()

    def settle(self, has_served: bool) -> None:
        """The client has settled one of the texts; with the last of all that were sent the request is."""
        self._has_served = self._has_served and has_served
        self._tell_settled()

    def close(self) -> None:
        """No more texts come; what is open is aborted, which changes nothing where all have ended."""
        self._is_closed = True
        for wire_id in list(self._open):
            self._send(wire.Abort(request_id=wire_id, reason="disconnect"))
        self._has_served = self._has_served and self.vectors.done() and not self.vectors.cancelled()
        self._tell_settled()

    def _tell_settled(self) -> None:
        if self._is_closed and not self._open:
            on_settled, self._on_settled = self._on_settled, _nobody
            on_settled(self._has_served)


class EmbedStream:
    """One text of a batch, as the client knows open requests."""

    is_held = False
    """It has no reader that could be slow."""
    num_overshoot = 0
    num_unreadable_calls = 0

    def __init__(self, batch: EmbedBatch, index: int, wire_id: str) -> None:
        self.wire_id = wire_id
        self.num_unsettled = 1
        self.usage = Usage(0, 0)
        self._batch = batch
        self._index = index
        batch.enter(self)

    @property
    def is_ended(self) -> bool:
        """Whether nobody waits for it."""
        return self._batch.vectors.done()

    def submit(self, text: PreparedText, priority: int) -> wire.Submit:
        """What the worker is sent."""
        self.usage = Usage(len(text.token_ids), 0)
        return wire.Submit(
            request_id=self.wire_id,
            prompt_token_ids=list(text.token_ids),
            second_start=text.second_start,
            priority=priority,
        )

    def accept(self) -> None:
        """The worker has it: nobody waits for that."""

    def embed(self, data: bytes) -> None:
        """Its vector, which is its end."""
        self._leave()
        self._batch.put(self._index, data)

    def apply(self, event: wire.TokenEvent) -> None:
        """Its end without a vector."""
        self._leave()
        if event.error is not None:
            self._batch.fail(from_wire(event.error))
        else:
            self.end(str(event.stop_reason or "abort"))

    def wake(self) -> None:
        """Its batch's future has woken whoever waits."""

    def fail(self, error: HeadwayError, *, abort_reason: str = "error") -> None:
        """A fault on this side, or the end of the server. The batch aborts what is open when its caller hears of it."""
        self._batch.fail(error)

    def end(self, stop_reason: str) -> None:
        """Ended from outside: there is no half of a vector, so the request fails."""
        error: CapacityError = ShuttingDown(f"the request was ended ({stop_reason}) before its vectors were made")
        self._batch.fail(error)

    def lose_worker(self, error: HeadwayError) -> None:
        """The worker is gone, or refused it."""
        self._leave()
        self._batch.fail(error)

    def _leave(self) -> None:
        self.num_unsettled = 0
        self._batch.leave(self)


def _nobody(has_served: bool) -> None:
    """The settlement was told."""
