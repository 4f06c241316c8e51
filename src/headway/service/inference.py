"""Tensors and values to a model and back: a lease on it, its client's answer, and another try where a process died."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from headway.core.infer import Inferred, InferRequest
from headway.errors import UnsupportedFeature, WorkerDied, from_wire
from headway.observe.clock import Clock
from headway.service.ensemble import EnsembleClient, Infer
from headway.service.lease import Lease
from headway.service.names import model_id
from headway.service.residents import Residents
from headway.service.served_model import ServedModel
from headway.worker.given_answer import Outcome, take_given_answer
from headway.worker.infer_client import make_inferred
from headway.worker.resident import ModelGone, TensorClient


async def infer(residents: Residents, model: ServedModel, request: InferRequest, clock: Clock, ask: Infer) -> Inferred:
    """The model's answer. Raises HeadwayError: then nothing of it runs on but what was computed already.

    A call whose process died is made again up to InferConfig.max_retries times, at a process that lives, or the next.
    `ask`: how an ensemble asks the models of its steps.
    """
    settings = model.config.infer
    timeout_s = settings.timeout_s if request.timeout_s is None else request.timeout_s
    deadline = None if timeout_s is None else clock.now() + timeout_s
    num_retries = 0
    while True:
        lease = take_given_answer() or await residents.lease(model, deadline)
        try:
            if not isinstance(lease, Lease):
                inferred = _made_of(lease)
            elif isinstance(lease.client, EnsembleClient):
                inferred = await _run(lease, lease.client, replace(request, timeout_s=timeout_s), ask)
            else:
                inferred = await _client_of(lease).infer(request, lease.release, deadline=deadline)
        except ModelGone:
            continue  # nothing was asked of it, so the next one may be asked
        except WorkerDied:
            if num_retries >= settings.max_retries:
                raise
            num_retries += 1
        else:
            return _named(inferred, model_id(model.config), model.config.version)


def _made_of(outcome: Outcome) -> Inferred:
    """What the model has answered already. Raises what it failed with."""
    if isinstance(outcome, Exception):
        raise outcome
    if outcome.error is not None:
        raise from_wire(outcome.error)
    return make_inferred("", outcome)


async def _run(lease: Lease, ensemble: EnsembleClient, request: InferRequest, ask: Infer) -> Inferred:
    try:
        return await ensemble.run(request, ask)
    finally:
        lease.release(True)


async def signature(residents: Residents, model: ServedModel) -> Mapping[str, Any]:
    """headway_wire.Signature as plain data, of the last load or of one that is made now. Raises as infer()."""
    if not model.info:
        lease = await residents.lease(model)
        lease.release(False)
    if "platform" not in model.info:
        raise _takes_no_tensors(model)
    return model.info


def _client_of(lease: Lease) -> TensorClient:
    """Raises UnsupportedFeature, the lease released."""
    if not _takes_tensors(type(lease.client)):
        lease.release(False)
        raise _takes_no_tensors(lease.model)
    return cast(TensorClient, lease.client)


@functools.cache
def _takes_tensors(kind: type[Any]) -> bool:
    """Looking through a protocol takes a tenth of what a whole request does."""
    return issubclass(kind, TensorClient)


def _named(inferred: Inferred, name: str, version: str) -> Inferred:
    if inferred.model == name and inferred.version == version:
        return inferred
    return replace(inferred, model=name, version=version)


def _takes_no_tensors(model: ServedModel) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"{model.id} is a model of type {model.config.type}: it takes no tensors; ask it by /v1/chat/completions,"
        " /v1/embeddings or what suits its type",
        param="model",
    )
