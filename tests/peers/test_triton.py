"""Models on a real Triton: put into its repository, loaded, asked in every datatype, unloaded; and what it refuses."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import InferRequest
from headway.errors import HeadwayError, InvalidConfig, InvalidRequest, UnsupportedFeature, UpstreamFailed
from headway.service.local import LocalService
from headway_wire.tensors import NUMPY_NAMES, from_array, to_array
from peers.triton_server import TritonServer, serve_triton

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

IDENTITY = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([
                pb.Tensor("OUT_" + tensor.name(), tensor.as_numpy()) for tensor in request.inputs()
            ])
            for request in requests
        ]
"""
FAILING = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("these weights are broken")
"""
RAISING = """
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("the model is sad")
"""
NAMES = [*NUMPY_NAMES, "BYTES"]


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with serve_triton(tmp_path_factory.mktemp("triton")) as server:
        yield server


@pytest.fixture
async def serve(triton: TritonServer, tmp_path: Path) -> AsyncIterator[Any]:
    services: list[LocalService] = []

    async def make(source: str, **options: Any) -> LocalService:
        model = ModelConfig(
            source=source,
            served_names=("far",),
            framework="triton",
            type="tensor",
            options={"url": triton.http_url, **options},
        )
        services.append(
            LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path / "cache"))
        )
        return services[-1]

    yield make
    for service in services:
        await service.aclose()


def identity_config(names: list[str]) -> dict[str, Any]:
    return {
        "backend": "python",
        "input": [{"name": name, "data_type": name, "dims": [-1, 2]} for name in names],
        "output": [{"name": f"OUT_{name}", "data_type": name, "dims": [-1, 2]} for name in names],
    }


def write(tmp_path: Path, code: str) -> str:
    path = tmp_path / "code.py"
    path.write_text(code)
    return str(path)


def array_of(datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        return np.array([["a", ""], ["Grüße", "x" * 300]], dtype=object)
    if datatype == "BOOL":
        return np.array([[True, False], [False, True]])
    kind = np.dtype(NUMPY_NAMES[datatype])
    if kind.kind == "f":
        return np.array([[1.5, -2.25], [float("inf"), 0.0]], dtype=kind)
    return np.array([[np.iinfo(kind).max, np.iinfo(kind).min], [1, 0]], dtype=kind)


def ask(arrays: dict[str, np.ndarray], **fields: Any) -> InferRequest:
    tensors = [from_array(name, array) for name, array in arrays.items()]
    return InferRequest(request_id="r", model="far", tensors=tensors, **fields)


async def test_a_model_is_put_loaded_asked_in_every_datatype_and_taken_away(
    triton: TritonServer, serve: Any, tmp_path: Path
) -> None:
    service = await serve(
        write(tmp_path, IDENTITY), repository=str(triton.repository), model="identity", config=identity_config(NAMES)
    )
    signature = await service.signature("far")
    assert {spec["name"]: spec["datatype"] for spec in signature["inputs"]} == {name: name for name in NAMES}
    arrays = {name: array_of(name) for name in NAMES}
    inferred = await service.infer(ask(arrays))
    told = {tensor.name: tensor for tensor in inferred.tensors}
    assert set(told) == {f"OUT_{name}" for name in NAMES}
    for name, array in arrays.items():
        tensor = told[f"OUT_{name}"]
        assert (tensor.datatype, tensor.data) == (name, from_array(name, array).data)
        if name != "BYTES":
            np.testing.assert_array_equal(to_array(tensor), array)
    only = await service.infer(ask(arrays, outputs=("OUT_FP32",)))
    assert [tensor.name for tensor in only.tensors] == ["OUT_FP32"]
    assert (triton.repository / "identity" / "1" / "model.py").is_file()

    await service.aclose()
    assert not (triton.repository / "identity").exists()
    assert list(triton.repository.glob(".headway*")) == []


async def test_what_does_not_fit_is_refused_before_it_is_sent(triton: TritonServer, serve: Any, tmp_path: Path) -> None:
    service = await serve(
        write(tmp_path, IDENTITY),
        repository=str(triton.repository),
        model="checked",
        config=identity_config(["FP32"]),
    )
    for arrays, words in (
        ({"FP64": np.zeros((1, 2))}, "FP64"),
        ({"FP32": np.zeros((1, 2))}, "FP64"),
        ({"FP32": np.zeros((1, 3), dtype=np.float32)}, r"\[1, 3\]"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            await service.infer(ask(arrays))
    with pytest.raises(UnsupportedFeature, match="no value"):
        await service.infer(InferRequest(request_id="r", model="far", value="text"))


async def test_two_ask_at_the_same_time_and_get_their_own(triton: TritonServer, serve: Any, tmp_path: Path) -> None:
    service = await serve(
        write(tmp_path, IDENTITY),
        repository=str(triton.repository),
        model="several",
        config=identity_config(["FP32"]) | {"instances": 2},
    )
    rows = [np.full((1, 2), number, dtype=np.float32) for number in range(16)]
    answers = await asyncio.gather(*(service.infer(ask({"FP32": row})) for row in rows))
    for row, answer in zip(rows, answers, strict=True):
        np.testing.assert_array_equal(to_array(answer.tensors[0]), row)


@pytest.mark.parametrize(("code", "words"), [(FAILING, "these weights are broken"), (RAISING, "the model is sad")])
async def test_a_model_that_fails_says_why(
    triton: TritonServer, serve: Any, tmp_path: Path, code: str, words: str
) -> None:
    service = await serve(
        write(tmp_path, code), repository=str(triton.repository), model="fails", config=identity_config(["FP32"])
    )
    with pytest.raises(HeadwayError, match=words):
        await service.infer(ask({"FP32": np.zeros((1, 2), dtype=np.float32)}))


async def test_a_model_of_the_servers_own_is_used_and_left_loaded(triton: TritonServer, serve: Any) -> None:
    config = (
        'backend: "python"\ninput [{ name: "X" data_type: TYPE_FP32 dims: [2] }]\n'
        'output [{ name: "OUT_X" data_type: TYPE_FP32 dims: [2] }]\n'
    )
    triton.write_model("theirs", config, IDENTITY)
    row = {"X": np.array([1, 2], dtype=np.float32)}
    loading = await serve(triton.http_url, model="theirs")
    await loading.infer(ask(row))
    other = await serve(triton.http_url, model="theirs", loads=False, version="1")
    np.testing.assert_array_equal(to_array((await other.infer(ask(row))).tensors[0]), row["X"])
    await other.aclose()
    await loading.infer(ask(row))
    # Who loaded it unloads it, and then it is there no more.
    await loading.aclose()
    with pytest.raises(UpstreamFailed, match="'theirs' that is ready"):
        await (await serve(triton.http_url, model="theirs", loads=False)).infer(ask(row))


async def test_a_folder_that_is_not_ours_is_left_alone(triton: TritonServer, serve: Any, tmp_path: Path) -> None:
    folder = triton.write_model("kept", "", IDENTITY)
    service = await serve(
        write(tmp_path, IDENTITY), repository=str(triton.repository), model="kept", config=identity_config(["FP32"])
    )
    with pytest.raises(InvalidConfig, match="not put there by Headway"):
        await service.signature("far")
    await service.aclose()
    assert (folder / "1" / "model.py").read_text() == IDENTITY
