"""ModelStreamInfer: requests in one stream, answers in another, each as soon as it is there.

Several requests of a stream are worked on at once, so answers come in any order: their id tells whose they are. A
language model whose input `stream` is true gives an answer for each piece of its text; the last answer to a request has
the parameter triton_final_response. A request that fails is told by an error_message, and the stream goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import headway_wire as wire
from headway._native import TokenTimes
from headway.core.output import TextDelta
from headway.errors import HeadwayError, InvalidRequest
from headway.observe.logs import get_logger
from headway.server.errors import error_body
from headway.server.generation import Choice, Generation
from headway.server.oip import plane
from headway.server.oip.plane import Asked
from headway.server.oip.rpc.convert import make_response, read_infer
from headway.server.oip.rpc.messages import StreamInferResponse
from headway.server.oip.targets import find_target
from headway.server.oip.text_tensors import is_encoder, is_stream_wanted, is_text_model, text_outputs, text_requests
from headway.server.state import ServerState

log = get_logger("headway.server")

MAX_AT_ONCE = 64
"""Requests of one stream; the next is read when one of them is answered."""
MAX_QUEUED = 16
"""Answers that a slow client has not taken; then its requests wait."""
FINAL = "triton_final_response"
EMPTY_FINAL = "triton_enable_empty_final_response"
"""Of a request: a stream may end with an answer that has no outputs. Ours has some."""


class InferStream:
    """One call. Iterate it once; however that ends, nothing of it runs on."""

    def __init__(self, state: ServerState, requests: AsyncIterator[Any]) -> None:
        self._state = state
        self._requests = requests
        self._answers: asyncio.Queue[Any] = asyncio.Queue(MAX_QUEUED)
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def __aiter__(self) -> AsyncIterator[Any]:
        reading = asyncio.ensure_future(self._read())
        try:
            while (answer := await self._answers.get()) is not None:
                yield answer
            await reading
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read(self) -> None:
        """Starts a task for each request; the answers end when all are done, or when the caller's stream broke."""
        try:
            async with asyncio.TaskGroup() as group:
                async for message in self._requests:
                    await self._places.acquire()
                    group.create_task(self._answer(message))
        except Exception:
            await self._answers.put(None)
            raise
        await self._answers.put(None)

    async def _answer(self, message: Any) -> None:
        try:
            await self._answer_one(message)
        except Exception as error:  # of this request alone: the stream has others
            if not isinstance(error, HeadwayError):
                log.exception("a request of a stream failed")
            failed = {"model_name": message.model_name, "id": message.id}
            told = StreamInferResponse(error_message=error_body(error).error.message, infer_response=failed)
            await self._answers.put(told)
        finally:
            self._places.release()

    async def _answer_one(self, message: Any) -> None:
        arrived_s = self._state.clock.now()
        message.parameters.pop(EMPTY_FINAL, None)
        asked = read_infer(message, find_target(self._state, message.model_name, message.model_version))
        card = asked.target.card
        if is_text_model(card) and not is_encoder(card) and is_stream_wanted(asked.request()):
            await self._stream_text(asked, arrived_s)
            return
        answered = await plane.infer(self._state, asked, arrived_s)
        await self.put(asked, [tensor for tensor, _ in answered.outputs], is_final=True)

    async def _stream_text(self, asked: Asked, arrived_s: float) -> None:
        requests = await text_requests(self._state, asked.request())
        if requests[0].sampling.n != 1:
            raise InvalidRequest(
                f"n is {requests[0].sampling.n}; a stream has one choice: ask for it n times", param="n"
            )
        with self._state.inferences.measure(asked.target.statistics_key):
            async with await Generation.open(self._state, requests, arrived_s) as generation:
                pieces = _Pieces(self, asked)
                await generation.feed(pieces)
                await pieces.drain()

    async def put(self, asked: Asked, tensors: Sequence[wire.Tensor], *, is_final: bool) -> None:
        """An answer; waits while the client takes none."""
        response = make_response(asked, tensors, {FINAL: is_final})
        await self._answers.put(StreamInferResponse(infer_response=response))


class _Pieces:
    """A generation's deltas as answers (server/generation.Sink). None is taken while one waits for the client."""

    def __init__(self, stream: InferStream, asked: Asked) -> None:
        self._stream = stream
        self._asked = asked
        self._wanted = {output.name for output in asked.wanted}
        self._pending: list[TextDelta] = []

    def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
        self._pending += deltas
        return False

    async def drain(self) -> None:
        """Sends what was taken."""
        pending, self._pending = self._pending, []
        for delta in pending:
            is_final = delta.finish_reason is not None
            if delta.text or is_final:
                await self._stream.put(self._asked, self._tensors(delta), is_final=is_final)

    def offer_events(self, index: int, times: TokenTimes) -> None:
        """None: a piece is a message of its own, and no event."""

    def _tensors(self, delta: TextDelta) -> list[wire.Tensor]:
        text, reason = text_outputs([Choice(text=delta.text, finish_reason=delta.finish_reason)])
        tensors = [text] if delta.finish_reason is None else [text, reason]
        return [tensor for tensor in tensors if not self._wanted or tensor.name in self._wanted]
