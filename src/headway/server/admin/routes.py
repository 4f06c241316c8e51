"""Health, readiness, version, metrics, states. None touches a model: a scrape loads nothing and resets no timer.

/livez               200 as long as this process answers
/health, /ready(z)   200 when a request would be taken now, else 503: loading, worker dead, shutting down
/admin/models        each model's state, the phases of its load, and why it failed last
"""

from fastapi import APIRouter, Request, Response

import headway
from headway.observe.metrics import CONTENT_TYPE
from headway.server.admin.cards import describe, describe_upstream
from headway.server.errors import json_response
from headway.server.state import state_of

router = APIRouter(tags=["Health"])


@router.get("/livez")
@router.head("/livez", include_in_schema=False)
async def livez(_: Request) -> Response:
    """The process lives: restart it when this does not answer."""
    return json_response({"status": "ok"})


@router.get("/health")
@router.head("/health", include_in_schema=False)
@router.get("/ready")
@router.head("/ready", include_in_schema=False)
@router.get("/readyz")
@router.head("/readyz", include_in_schema=False)
async def ready(request: Request) -> Response:
    """Send requests when this is 200."""
    state = state_of(request)
    is_ready, reason = state.readiness()
    if is_ready:
        return json_response({"status": "ok"})
    # Asked without a key: why a model failed may name files, so it is told where everybody may ask anything.
    body = {"status": "unavailable"} | ({} if state.config.api_keys else {"reason": reason[:500]})
    return json_response(body, status=503, headers={"retry-after": "1"})


@router.get("/version")
@router.head("/version", include_in_schema=False)
async def version(_: Request) -> Response:
    """The server's version."""
    return json_response({"version": headway.__version__})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(state_of(request).metrics.render(), media_type=CONTENT_TYPE)


@router.get("/admin/models")
async def models(request: Request) -> Response:
    """The served models: cold, loading, ready or failed, and why."""
    service = state_of(request).service
    numbers = service.stats().get("models", {})
    told = [describe(card) | describe_upstream(numbers.get(card.model or card.id, {})) for card in service.models()]
    return json_response({"models": told})
