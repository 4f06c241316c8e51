"""The service's methods: each takes a message, asks what the REST routes ask, and gives a message."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from headway.errors import ModelNotFound
from headway.server.oip import metadata, plane, repository
from headway.server.oip.rpc.convert import make_response, read_infer, read_parameters
from headway.server.oip.rpc.messages import message
from headway.server.oip.targets import find_target
from headway.server.state import ServerState

Method = Callable[[ServerState, Any], Awaitable[Any]]


async def server_live(_: ServerState, __: Any) -> Any:
    """The process answers."""
    return message("ServerLiveResponse")(live=True)


async def server_ready(state: ServerState, _: Any) -> Any:
    """A request would be taken now."""
    return message("ServerReadyResponse")(ready=state.readiness()[0])


async def model_ready(state: ServerState, request: Any) -> Any:
    """The model is resident; of one that is not there: it is not, as Triton has it."""
    try:
        is_ready = find_target(state, request.name, request.version).card.state == "ready"
    except ModelNotFound:
        is_ready = False
    return message("ModelReadyResponse")(ready=is_ready)


async def server_metadata(_: ServerState, __: Any) -> Any:
    """The server's name, version and extensions."""
    return message("ServerMetadataResponse")(**metadata.server_metadata())


async def model_metadata(state: ServerState, request: Any) -> Any:
    """A model's versions, inputs and outputs."""
    target = find_target(state, request.name, request.version)
    told = metadata.model_metadata(state, target, await plane.signature_of(state, target))
    return message("ModelMetadataResponse")(**told)


async def model_config(state: ServerState, request: Any) -> Any:
    """The same in the form of Triton's configuration."""
    target = find_target(state, request.name, request.version)
    config = metadata.model_config(target, await plane.signature_of(state, target))
    return message("ModelConfigResponse")(config=config)


async def model_statistics(state: ServerState, request: Any) -> Any:
    """Of one model, or of all."""
    return message("ModelStatisticsResponse")(
        model_stats=metadata.model_statistics(state, request.name, request.version)
    )


async def model_infer(state: ServerState, request: Any) -> Any:
    """Tensors in, tensors out."""
    arrived_s = state.clock.now()
    asked = read_infer(request, find_target(state, request.model_name, request.model_version))
    answered = await plane.infer(state, asked, arrived_s)
    return make_response(asked, [tensor for tensor, _ in answered.outputs])


async def repository_index(state: ServerState, request: Any) -> Any:
    """All models and their states."""
    entries = repository.index(state, only_ready=request.ready)
    models = [
        {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
        for entry in entries
    ]
    return message("RepositoryIndexResponse")(models=models)


async def repository_model_load(state: ServerState, request: Any) -> Any:
    """Answers once the model is ready."""
    await repository.load(state, request.model_name, read_parameters(request.parameters))
    return message("RepositoryModelLoadResponse")()


async def repository_model_unload(state: ServerState, request: Any) -> Any:
    """Answers once the model is gone."""
    await repository.unload(state, request.model_name, read_parameters(request.parameters))
    return message("RepositoryModelUnloadResponse")()


METHODS: Mapping[str, Method] = {
    "ServerLive": server_live,
    "ServerReady": server_ready,
    "ModelReady": model_ready,
    "ServerMetadata": server_metadata,
    "ModelMetadata": model_metadata,
    "ModelConfig": model_config,
    "ModelStatistics": model_statistics,
    "ModelInfer": model_infer,
    "RepositoryIndex": repository_index,
    "RepositoryModelLoad": repository_model_load,
    "RepositoryModelUnload": repository_model_unload,
}
"""Those that give one message; ModelStreamInfer is stream.py's."""
ADMIN_METHODS = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
"""Those that need an admin key, where the server has any."""
OPEN_METHODS = frozenset({"ServerLive", "ServerReady", "ServerMetadata"})
"""Answered without a key, and while shutting down."""
