"""The one way from GenerateRequests to an HTTP answer, for every API: only its shapes differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from headway.core.request import GenerateRequest
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.events import Events, EventStream
from headway.server.generation import Choice, Generation
from headway.server.state import ServerState, state_of

Whole = Callable[[Generation, Sequence[Choice]], object]
"""Turns a finished generation into the body of an answer."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """How one API writes its answers."""

    whole: Whole
    events: Events


async def answer(request: Request, requests: Sequence[GenerateRequest], shapes: Shapes, *, is_stream: bool) -> Response:
    """Runs the requests and answers; the client's leaving ends them, in the queue as well as on the way.

    Raises HeadwayError before anything was sent, and ClientGone.
    """
    state = state_of(request)
    arrived_s = state.clock.now()
    if is_stream:
        generation = await run_watched(request.receive, Generation.open(state, requests, arrived_s), request.scope)
        return EventStream(generation, shapes.events, write_timeout_s=state.config.slow_reader_timeout_s)
    body = await run_watched(request.receive, _run_whole(state, requests, shapes.whole, arrived_s), request.scope)
    return json_response(body)


async def _run_whole(state: ServerState, requests: Sequence[GenerateRequest], whole: Whole, arrived_s: float) -> object:
    async with await Generation.open(state, requests, arrived_s) as generation:
        return whole(generation, await generation.collect())
