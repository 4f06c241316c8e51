"""One inference, for every door: counted however it ends; over HTTP worked on only as long as its client is there."""

from collections.abc import Mapping, Sequence

from starlette.requests import Request

from headway.core.infer import Inferred, InferRequest
from headway.server.counted import run_counted
from headway.server.disconnect import run_watched
from headway.server.state import ServerState, state_of


async def run_inference(request: Request, wanted: InferRequest, arrived_s: float) -> Inferred:
    """infer_metered(), for an HTTP request. Raises HeadwayError, ClientGone."""
    work = infer_metered(state_of(request), wanted, arrived_s)
    return await run_watched(request.receive, work, request.scope)


async def infer_metered(state: ServerState, wanted: InferRequest, arrived_s: float) -> Inferred:
    """What the model answers, counted. Raises HeadwayError. `arrived_s`: seconds of the state's clock."""
    end = state.metrics.infer.end
    work = state.service.infer(wanted)
    return await run_counted(work, lambda outcome, _: end(wanted.model, outcome, state.clock.now() - arrived_s))


def load_headers(made: Inferred) -> Mapping[str, str]:
    """Server-Timing (W3C) of a request that waited for its model's load: each phase in milliseconds."""
    return load_phase_headers(made.load_phases)


def load_phase_headers(phases: Sequence[tuple[str, float]]) -> Mapping[str, str]:
    """The same of a load's phases and their seconds."""
    if not phases:
        return {}
    return {"server-timing": ", ".join(f"{phase};dur={seconds * 1e3:.1f}" for phase, seconds in phases)}
