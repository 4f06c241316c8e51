"""The protocol's REST routes: they read, ask plane.py, and answer.

A MODEL may have slashes, and a version behind it: /v2/models/MODEL/versions/2/infer.
"""

from typing import Any

from fastapi import APIRouter, Request, Response

from headway.server.body import BodyT, parse_body, read_bytes
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.headers import find_header
from headway.server.inferring import load_phase_headers
from headway.server.oip import metadata, plane, repository
from headway.server.oip.answers import infer_response
from headway.server.oip.binary import HEADER
from headway.server.oip.convert import read_infer
from headway.server.oip.errors import ToldError
from headway.server.oip.generate import generate as generate_answer
from headway.server.oip.schema import GenerateBody, IndexBody, InferBody, LoadBody, UnloadBody
from headway.server.oip.targets import Target, find_target, split_path
from headway.server.openapi import in_path, takes
from headway.server.origins import check_origin
from headway.server.state import state_of

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

_MODEL = in_path("model", "A model's name, and /versions/VERSION behind it where one is meant.")
_HEADER = HEADER.encode()


@router.get("")
async def server_metadata(_: Request) -> Response:
    """The server's name, version and extensions."""
    return json_response(metadata.server_metadata())


@router.get("/health/live")
async def live(_: Request) -> Response:
    """200: the process answers."""
    return Response()


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """200: a request would be taken now; else 400, as the protocol has it."""
    is_ready, _ = state_of(request).readiness()
    return Response() if is_ready else json_response(ToldError("the server is not ready"), status=400)


@router.get("/models/stats")
async def all_statistics(request: Request) -> Response:
    """The statistics of all models."""
    return json_response({"model_stats": metadata.model_statistics(state_of(request), "", "")})


@router.get("/models/{model:path}/ready", openapi_extra=_MODEL)
async def model_ready(request: Request) -> Response:
    """200: the model is resident; else 400. A cold one is loaded by its next request, or by /load."""
    target = _target(request)
    if target.card.state == "ready":
        return Response()
    return json_response(ToldError(f"model {target.name} is {target.card.state}"), status=400)


@router.get("/models/{model:path}/config", openapi_extra=_MODEL)
async def model_config(request: Request) -> Response:
    """A model's inputs and outputs in the form of Triton's configuration."""
    target = _target(request)
    signature = await run_watched(request.receive, plane.signature_of(state_of(request), target), request.scope)
    return json_response(metadata.model_config(target, signature))


@router.get("/models/{model:path}/stats", openapi_extra=_MODEL)
async def statistics(request: Request) -> Response:
    """How many inferences of this protocol a model has answered, and how long they took."""
    name, version = split_path(request.path_params["model"])
    return json_response({"model_stats": metadata.model_statistics(state_of(request), name, version)})


@router.get("/models/{model:path}", openapi_extra=_MODEL)
async def model_metadata(request: Request) -> Response:
    """A model's versions, inputs and outputs. One that takes tensors and was never loaded is loaded for it."""
    state, target = state_of(request), _target(request)
    signature = await run_watched(request.receive, plane.signature_of(state, target), request.scope)
    return json_response(metadata.model_metadata(state, target, signature))


@router.post("/models/{model:path}/infer", openapi_extra=takes(InferBody) | _MODEL)
async def infer(request: Request) -> Response:
    """Tensors in, tensors out: as JSON, or as binary data behind it."""
    state = state_of(request)
    arrived_s = state.arrival_s()
    data = await read_bytes(request)
    asked = read_infer(data, find_header(request.scope, _HEADER), _target(request))
    answered = await run_watched(request.receive, plane.infer(state, asked, arrived_s), request.scope)
    if state.native_door is not None:
        state.native_door.learn_infer(request.scope, lambda: _target(request))
    return infer_response(asked, answered)


@router.post("/models/{model:path}/generate", openapi_extra=takes(GenerateBody) | _MODEL)
async def generate(request: Request) -> Response:
    """A language model's text."""
    return await generate_answer(request, *split_path(request.path_params["model"]), is_stream=False)


@router.post("/models/{model:path}/generate_stream", openapi_extra=takes(GenerateBody) | _MODEL)
async def generate_stream(request: Request) -> Response:
    """A language model's text as it is made: server-sent events."""
    return await generate_answer(request, *split_path(request.path_params["model"]), is_stream=True)


@router.post("/repository/index", openapi_extra=takes(IndexBody))
async def index(request: Request) -> Response:
    """All models and their states."""
    body = await _read_optional(request, IndexBody)
    entries = repository.index(state_of(request), only_ready=bool(body.ready))
    return json_response([_index_entry(entry) for entry in entries])


@router.post("/repository/models/{model:path}/load", openapi_extra=takes(LoadBody) | _MODEL)
async def load(request: Request) -> Response:
    """Makes a model resident; answers once it is ready."""
    check_origin(request)
    body = await _read_optional(request, LoadBody)
    name = request.path_params["model"]
    work = repository.load(state_of(request), name, body.parameters)
    card = await run_watched(request.receive, work, request.scope)
    return Response(headers=load_phase_headers(card.phases), media_type="application/json")


@router.post("/repository/models/{model:path}/unload", openapi_extra=takes(UnloadBody) | _MODEL)
async def unload(request: Request) -> Response:
    """Lets a model go; answers once its memory is free."""
    check_origin(request)
    body = await _read_optional(request, UnloadBody)
    name = request.path_params["model"]
    await run_watched(request.receive, repository.unload(state_of(request), name, body.parameters), request.scope)
    return Response(media_type="application/json")


def _target(request: Request) -> Target:
    return find_target(state_of(request), *split_path(request.path_params["model"]))


async def _read_optional(request: Request, model: type[BodyT]) -> BodyT:
    """A body that may be empty."""
    return parse_body(await read_bytes(request) or b"{}", model)


def _index_entry(entry: repository.IndexEntry) -> dict[str, Any]:
    told = {"name": entry.name, "version": entry.version, "state": entry.state}
    return told | ({"reason": entry.reason} if entry.reason else {})
