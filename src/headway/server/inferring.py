"""One inference for an HTTP request, for every door: worked on only as long as its client is there, and counted."""

from collections.abc import Mapping

from starlette.requests import Request

from headway.core.infer import Inferred, InferRequest
from headway.errors import ModelNotFound
from headway.observe.encoder_metrics import Outcome
from headway.server.disconnect import ClientGone, run_watched
from headway.server.state import state_of


async def run_inference(request: Request, wanted: InferRequest, arrived_s: float) -> Inferred:
    """What the model answers. Raises HeadwayError, ClientGone. `arrived_s`: seconds of the state's clock.

    A model that is not there is not counted: its name is the caller's.
    """
    state = state_of(request)
    outcome: Outcome | None = "abort"
    try:
        made = await run_watched(request.receive, state.service.infer(wanted), request.scope)
        outcome = "success"
        return made
    except ModelNotFound:
        outcome = None
        raise
    except ClientGone:
        raise
    except Exception:
        outcome = "error"
        raise
    finally:
        if outcome is not None:
            state.metrics.infer.end(wanted.model, outcome, state.clock.now() - arrived_s)


def load_headers(made: Inferred) -> Mapping[str, str]:
    """Server-Timing (W3C) of a request that waited for its model's load: each phase in milliseconds."""
    if not made.load_phases:
        return {}
    phases = ", ".join(f"{phase};dur={seconds * 1e3:.1f}" for phase, seconds in made.load_phases)
    return {"server-timing": phases}
