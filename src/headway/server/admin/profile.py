"""POST /admin/profile: the next steps of a model, as a trace in Chrome's format, while it serves."""

from fastapi import APIRouter, Request, Response
from pydantic import Field

from headway.server.body import Body, read_body
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.openapi import takes
from headway.server.state import state_of

router = APIRouter(tags=["Health"])


class ProfileBody(Body):
    """What to record."""

    model: str | None = Field(None, description="One of /v1/models; left out: the first.")
    num_steps: int = Field(20, ge=1, le=1000)
    timeout_s: float = Field(30.0, gt=0, le=600, description="End with the steps that were made by then.")


@router.post("/admin/profile", openapi_extra=takes(ProfileBody))
async def profile(request: Request) -> Response:
    """Waits for the steps that requests cause; starts none itself."""
    body = await read_body(request, ProfileBody)
    recording = state_of(request).service.profile(body.model, body.num_steps, body.timeout_s)
    return json_response(await run_watched(request.receive, recording, request.scope))
