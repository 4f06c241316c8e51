"""What is told of the server and of a model: metadata, configuration, statistics, in the protocol's names."""

from typing import Any

import headway
import headway_wire as wire
from headway.server.oip.statistics import ModelStatistics
from headway.server.oip.targets import Target, find_target, listed_models, version_of, versions_of
from headway.server.state import ServerState

SERVER_NAME = "headway"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)


def server_metadata() -> dict[str, Any]:
    """GET /v2."""
    return {"name": SERVER_NAME, "version": headway.__version__, "extensions": list(EXTENSIONS)}


def model_metadata(state: ServerState, target: Target, signature: wire.Signature) -> dict[str, Any]:
    """GET /v2/models/MODEL. A shape's -1 is any size; with batching the first is the batch's."""
    return {
        "name": target.name,
        "versions": versions_of(state, target.card),
        "platform": signature.platform,
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [_tensor(spec) for spec in signature.outputs],
    }


def model_config(target: Target, signature: wire.Signature) -> dict[str, Any]:
    """GET /v2/models/MODEL/config, as far as Triton's has a meaning here.

    max_batch_size is 0: then dims are whole shapes, which have the batch's axis where there is one.
    """
    return {
        "name": target.name,
        "platform": signature.platform,
        "backend": target.card.framework,
        "max_batch_size": 0,
        "input": [{**_config_tensor(spec), "optional": spec.is_optional} for spec in signature.inputs],
        "output": [_config_tensor(spec) for spec in signature.outputs],
        "model_transaction_policy": {"decoupled": False},
    }


def model_statistics(state: ServerState, name: str, version: str) -> list[dict[str, Any]]:
    """Of one model, or of all ("" for both)."""
    if name:
        target = find_target(state, name, version)
        return [_statistics(target.name, target.version, state.inferences.of(target.statistics_key))]
    keys = [(card.model or card.id, version_of(card)) for card in listed_models(state)]
    return [_statistics(*key, state.inferences.of(key)) for key in keys]


def _tensor(spec: wire.TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def _config_tensor(spec: wire.TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.shape}


def _statistics(name: str, version: str, it: ModelStatistics) -> dict[str, Any]:
    """Of what is done in a worker's process only the whole is known here."""
    nothing = {"count": 0, "ns": 0}
    names = ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    return {
        "name": name,
        "version": version,
        "last_inference": it.last_inference_ms,
        "inference_count": it.num_successes,
        "execution_count": it.num_successes,
        "inference_stats": {
            "success": {"count": it.num_successes, "ns": it.success_ns},
            "fail": {"count": it.num_failures, "ns": it.failure_ns},
            **dict.fromkeys(names, nothing),
        },
        "batch_stats": [],
    }
