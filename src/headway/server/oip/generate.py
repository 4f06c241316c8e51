"""POST .../generate and /generate_stream: a text in, a text out, whole or as it is made.

{"text_input": "...", "parameters": {"temperature": 0, "max_tokens": 5}, "id"?} gives
{"model_name", "model_version", "text_output", "finish_reason"}; the stream gives one such event for each piece, whose
text_output is what came new, and the last of which has the finish_reason. One that failed ends with {"error": "..."}.
Both are counted in the model's statistics: a stream when it ends, as failed where its client does not get all of it.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.core.output import TextDelta
from headway.core.request import GenerateRequest
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.answer import Shapes, answer
from headway.server.body import read_body
from headway.server.events import EventTemplate, event
from headway.server.generation import Choice, Generation
from headway.server.oip.errors import told_error
from headway.server.oip.schema import GenerateBody
from headway.server.oip.statistics import Measurement
from headway.server.oip.targets import Target, find_target
from headway.server.oip.text_tensors import is_encoder, is_text_model, sampled_requests
from headway.server.state import ServerState, state_of


class GeneratedOut(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, and one event of a stream."""

    id: str | UnsetType = UNSET
    model_name: str
    model_version: str
    text_output: str
    finish_reason: str | UnsetType = UNSET


async def generate(request: Request, name: str, version: str, *, is_stream: bool) -> Response:
    """Raises HeadwayError before anything was sent."""
    state = state_of(request)
    body = await read_body(request, GenerateBody)
    target = find_target(state, name, version)
    if body.stream is not None and body.stream != is_stream:
        other = "generate" if is_stream else "generate_stream"
        raise InvalidRequest(f"stream is {str(body.stream).lower()}: POST .../{other} answers so", param="stream")
    texts = GeneratedTexts(target, body.id or UNSET)
    measurement = state.inferences.measure(target.statistics_key)
    measurement.begin()
    try:
        requests = await _read_requests(state, target, body, is_stream)
        response = await answer(request, requests, Shapes(texts.whole, texts.events), is_stream=is_stream)
    except BaseException:
        measurement.end(is_failed=True)
        raise
    if is_stream:
        return CountedStream(response, texts, measurement)
    measurement.end(is_failed=False)
    return response


async def _read_requests(
    state: ServerState, target: Target, body: GenerateBody, is_stream: bool
) -> list[GenerateRequest]:
    if not is_text_model(target.card) or is_encoder(target.card):
        raise UnsupportedFeature(f"model {target.name} makes no text: POST .../infer asks it", param="model")
    parameters = dict(body.parameters or {})
    if parameters.pop("stream", is_stream) != is_stream:
        other = "generate" if is_stream else "generate_stream"
        raise InvalidRequest(f"parameters.stream does not suit: POST .../{other} answers so", param="parameters")
    requests = await sampled_requests(state, target.key, body.text_input, parameters)
    if requests[0].sampling.n != 1:
        raise InvalidRequest(
            f"n is {requests[0].sampling.n}; this route answers with one text: POST /generate takes n", param="n"
        )
    return requests


class CountedStream(Response):
    """A stream's answer, counted when it ends."""

    def __init__(self, stream: Response, texts: "GeneratedTexts", measurement: Measurement) -> None:
        self.status_code = stream.status_code
        self.background = None
        self.raw_headers = stream.raw_headers
        self._stream = stream
        self._texts = texts
        self._measurement = measurement

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Raises as the stream does."""
        is_sent = False
        try:
            await self._stream(scope, receive, send)
            is_sent = self._texts.is_ended
        finally:
            self._measurement.end(is_failed=not is_sent)


class GeneratedTexts:
    """Generations to this route's answers."""

    def __init__(self, target: Target, id_: str | UnsetType) -> None:
        self.is_ended = False
        """Whether a stream has come to its end without an error."""
        self._target = target
        self._id = id_
        self._template = EventTemplate(lambda text: event(self._told(text, None)))

    def whole(self, _: Generation, choices: Sequence[Choice]) -> GeneratedOut:
        """The one text."""
        return self._told(choices[0].text, choices[0].finish_reason)

    def events(self, _: Generation) -> "GeneratedTexts":
        """The stream's (server/events.Chunks): this, since it keeps nothing."""
        return self

    def begin(self) -> bytes:
        """Nothing."""
        return b""

    def chunk(self, index: int, delta: TextDelta) -> bytes:
        """What the text gained."""
        if not delta.text and delta.finish_reason is None:
            return b""
        return event(self._told(delta.text, delta.finish_reason))

    def template(self, index: int) -> EventTemplate:
        """An event of text alone."""
        return self._template

    def end(self) -> bytes:
        """Nothing: the connection's end of the body is the stream's."""
        self.is_ended = True
        return b""

    def fail(self, error: Exception) -> bytes:
        """The error."""
        return event(told_error(error))

    def _told(self, text: str, finish_reason: str | None) -> GeneratedOut:
        return GeneratedOut(
            id=self._id,
            model_name=self._target.name,
            model_version=self._target.version,
            text_output=text,
            finish_reason=UNSET if finish_reason is None else finish_reason,
        )
