"""A request to an encoder: worked on only as long as its client is there, and counted however it ends."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from headway.core.embedding import Embedded, Scored
from headway.observe.encoder_metrics import EncoderTask, Outcome
from headway.server.counted import run_counted
from headway.server.disconnect import run_watched
from headway.server.state import ServerState, state_of

Made = TypeVar("Made", Embedded, Scored)


async def run_metered(
    request: Request, task: EncoderTask, model: str, arrived_s: float, work: Coroutine[Any, Any, Made]
) -> Made:
    """metered(), for an HTTP request; as run_watched() has it."""
    counted = metered(state_of(request), task, model, arrived_s, work)
    return await run_watched(request.receive, counted, request.scope)


async def metered(
    state: ServerState, task: EncoderTask, model: str, arrived_s: float, work: Coroutine[Any, Any, Made]
) -> Made:
    """What `work` returns or raises, as run_counted() has it.

    Args:
        arrived_s: seconds of the state's clock.
    """

    def count(outcome: Outcome, made: Made | None) -> None:
        num_tokens = 0 if made is None else made.num_tokens
        seconds = state.clock.now() - arrived_s
        state.metrics.encoders.end(model, task, outcome, num_tokens=num_tokens, seconds=seconds)

    return await run_counted(work, count)
