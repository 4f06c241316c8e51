"""Tensors and values through the whole service: a lease, the model's processes, and what becomes of both."""

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import CheckpointConfig, InferConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    UnsupportedFeature,
    WorkerDied,
)
from headway.service.local import LocalService
from headway.testing.scripted_model import PREDICTOR
from headway_wire.tensors import from_array, to_array

WAIT_S = 30.0
INPUT = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}


def scripted(name: str = "m", *, infer: InferConfig | None = None, **options: Any) -> ModelConfig:
    return ModelConfig(
        source=name,
        served_names=(name,),
        framework="python",
        type="tensor",
        predictor=PREDICTOR,
        options=options,
        infer=infer or InferConfig(),
    )


Serve = Callable[..., LocalService]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    services: list[LocalService] = []

    def make(*models: ModelConfig, **pool: Any) -> LocalService:
        checkpoint = CheckpointConfig(cache_dir=tmp_path / "cache")
        services.append(LocalService(models, PoolConfig(**pool), ServerConfig(), checkpoint))
        return services[-1]

    yield make
    for service in services:
        async with asyncio.timeout(WAIT_S):
            await service.aclose()


async def ask(service: LocalService, value: Any = None, model: str = "m", **fields: Any) -> Inferred:
    async with asyncio.timeout(WAIT_S):
        return await service.infer(InferRequest(request_id="r", model=model, value=value, **fields))


def kill(pid: int) -> None:
    """Returns once the process has let go of its files; whose child it is reaps it."""
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watch], [], [], WAIT_S)[0]
    os.close(watch)


async def gate_at(tmp_path: Path, name: str = "gate") -> str:
    os.mkfifo(tmp_path / name)
    return str(tmp_path / name)


async def test_a_value_and_tensors_to_a_model_that_is_loaded_for_them(serve: Serve) -> None:
    service = serve(scripted(signature={"inputs": [INPUT], "outputs": [INPUT], "labels": ["a", "b"]}))
    answer = await ask(service, [1, "two", None])
    assert (answer.model, answer.value["echo"]) == ("m", [1, "two", None])
    array = np.array([[1, 2], [3, 4]], np.float32)
    answer = await ask(service, tensors=[from_array("x", array)])
    np.testing.assert_array_equal(to_array(answer.tensors[0]), array)
    signature = await service.signature("m")
    assert signature["inputs"] == [INPUT]
    assert service.stats()["pool"]["pool"]["leases"] == 0
    (card,) = service.models()
    assert card.info == signature


async def test_a_signature_loads_the_model(serve: Serve) -> None:
    service = serve(scripted(signature={"inputs": [INPUT]}))
    async with asyncio.timeout(WAIT_S):
        assert (await service.signature("m"))["inputs"] == [INPUT]


async def test_what_does_not_fit_is_refused_and_leaves_no_lease(serve: Serve) -> None:
    service = serve(scripted(signature={"inputs": [INPUT]}))
    with pytest.raises(InvalidRequest, match=r"'x' has the shape \[2\]; the model takes \[-1, 2\]"):
        await ask(service, tensors=[from_array("x", np.zeros(2, np.float32))])
    with pytest.raises(ModelNotFound):
        await ask(service, 1, model="other")
    assert service.stats()["pool"]["pool"]["leases"] == 0


async def test_a_process_that_dies_under_a_request_fails_it_and_the_next_has_a_new_one(serve: Serve) -> None:
    service = serve(scripted())
    first = (await ask(service, 1)).value["pid"]
    with pytest.raises(WorkerDied, match="SIGKILL"):
        await ask(service, {"kill": int(signal.SIGKILL)})
    assert (await ask(service, 2)).value["pid"] != first


async def test_a_call_whose_process_died_is_made_again_as_often_as_it_may(serve: Serve, tmp_path: Path) -> None:
    """The call that kills every process kills max_retries + 1 of them, and no more."""
    service = serve(scripted(infer=InferConfig(max_retries=1)), restart_delays_s=(0.0,))
    await ask(service, 1)
    with pytest.raises(WorkerDied):
        await ask(service, {"kill": int(signal.SIGKILL)})
    assert service.stats()["pool"]["pool"]["worker_starts_total"] == 2
    gate = await gate_at(tmp_path)
    asking = asyncio.create_task(ask(service, {"gate": gate, "echo": "again"}))
    writer = await asyncio.to_thread(open, gate, "wb")
    await asyncio.to_thread(kill, service.worker_pids()["m"])
    await asyncio.to_thread(writer.close)
    # The one that is asked again comes to the same gate.
    await asyncio.to_thread(lambda: open(gate, "wb").close())
    assert (await asking).value["echo"] == "again"


async def test_one_instance_that_dies_does_not_end_the_others(serve: Serve, tmp_path: Path) -> None:
    service = serve(scripted(infer=InferConfig(instances=2)))
    await ask(service, 0)
    gate = await gate_at(tmp_path)
    waiting = asyncio.create_task(ask(service, {"gate": gate, "echo": "lives"}))
    writer = await asyncio.to_thread(open, gate, "wb")
    with pytest.raises(WorkerDied):
        await ask(service, {"kill": int(signal.SIGKILL)})
    await asyncio.to_thread(writer.close)
    assert (await waiting).value["echo"] == "lives"
    assert service.stats()["pool"]["pool"]["worker_starts_total"] == 1


async def test_a_request_s_time_out_is_over_while_the_model_computes(serve: Serve, tmp_path: Path) -> None:
    service = serve(scripted())
    await ask(service, 0)
    gate = await gate_at(tmp_path)
    with pytest.raises(DeadlineExceeded, match="at the model"):
        await ask(service, {"gate": gate, "echo": 1}, timeout_s=0.05)
    assert service.stats()["pool"]["pool"]["leases"] == 1, "its model still works for it"
    await asyncio.to_thread(lambda: open(gate, "wb").close())
    assert (await ask(service, 2)).value["echo"] == 2
    assert service.stats()["pool"]["pool"]["leases"] == 0


async def test_the_model_s_own_time_out_holds_while_it_is_loaded_too(serve: Serve, tmp_path: Path) -> None:
    gate = await gate_at(tmp_path)
    service = serve(scripted(infer=InferConfig(timeout_s=0.05), load={"gate": gate}))
    with pytest.raises(ModelNotReady, match="was not ready within"):
        await ask(service, 1)


async def test_a_language_model_takes_no_tensors(serve: Serve, tmp_path: Path) -> None:
    from headway.testing.scripted_service import ScriptedService

    service = ScriptedService()
    await service.start()
    await service.until_ready()
    with pytest.raises(UnsupportedFeature, match="scripted is a model of type text-generation: it takes no tensors"):
        await ask(service, 1, model="scripted")
    with pytest.raises(UnsupportedFeature, match="takes no tensors"):
        await service.signature("scripted")
    assert service.stats()["pool"]["pool"]["leases"] == 0
    await service.aclose()


async def test_an_interpreter_that_there_is_not_is_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/nonexistent")
    config = scripted()
    service = serve(ModelConfig(source="m", served_names=("m",), framework=config.framework, interpreter="vllm"))
    with pytest.raises(
        InvalidConfig, match="/nonexistent/headway/envs/vllm/bin/python: make it: headway env create vllm"
    ):
        await ask(service, 1)
