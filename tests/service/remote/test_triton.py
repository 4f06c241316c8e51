"""A model on a server of the Open Inference Protocol: what is written into its repository, sent, and read.

tests/peers asks a real Triton."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway_wire as wire
from headway.config import InferConfig
from headway.core.infer import InferRequest
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InvalidConfig,
    InvalidRequest,
    ShuttingDown,
    UpstreamFailed,
    UpstreamTimeout,
)
from headway.service.remote.triton_config import TritonModelConfig, read_config, write_config
from headway.service.remote.triton_repository import put_model, remove_model
from headway.service.remote.v2_tensors import pack_request, unpack_answer
from headway.testing.scripted_upstream import Answer, ScriptedUpstream
from headway_wire.tensors import from_array
from service.remote.conftest import WAIT_S, Serve, until

PLAIN = TritonModelConfig(backend="python")


class TestConfig:
    def test_each_field_in_protobufs_text_format(self) -> None:
        config = read_config(
            {
                "backend": "python",
                "max_batch_size": 8,
                "input": [{"name": 'a"b', "data_type": "BYTES", "dims": [-1, 3]}],
                "output": [{"name": "y", "data_type": "TYPE_FP16", "dims": [1]}],
                "instances": 2,
                "dynamic_batching": {"max_queue_delay_microseconds": 100, "preferred_batch_size": [4, 8]},
                "parameters": {"PATH": "/a b"},
            },
            "far",
        )
        assert write_config("m", config).splitlines() == [
            'name: "m"',
            'backend: "python"',
            "max_batch_size: 8",
            'input { name: "a\\"b" data_type: TYPE_STRING dims: [ -1, 3 ] }',
            'output { name: "y" data_type: TYPE_FP16 dims: [ 1 ] }',
            "instance_group { kind: KIND_CPU count: 2 }",
            "dynamic_batching { max_queue_delay_microseconds: 100 preferred_batch_size: 4 preferred_batch_size: 8 }",
            'parameters { key: "PATH" value { string_value: "/a b" } }',
        ]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"input": [{"name": "x", "data_type": "FLOAT", "dims": [1]}]}, "FLOAT"),
            ({"max_batch_size": -1}, "max_batch_size"),
            ({"sequence_batching": {}}, "sequence_batching"),
        ],
    )
    def test_what_can_not_be_is_named(self, given: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidConfig, match=words):
            write_config("m", read_config(given, "far"))


class TestRepository:
    @pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "x" * 200])
    def test_a_name_stays_inside(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "model.onnx").touch()
        with pytest.raises(InvalidConfig, match=r"options\.model"):
            put_model(tmp_path, name, "", tmp_path / "model.onnx", PLAIN)

    def test_a_file_a_folder_and_a_whole_model(self, tmp_path: Path) -> None:
        repository, source = tmp_path / "repository", tmp_path / "source"
        repository.mkdir()
        source.mkdir()
        (source / "model.onnx").write_bytes(b"1")
        assert (put_model(repository, "m", "", source / "model.onnx", PLAIN) / "1" / "model.onnx").read_bytes() == b"1"
        (source / "extra").write_bytes(b"2")
        folder = put_model(repository, "m", "3", source, PLAIN)
        assert sorted(path.name for path in (folder / "3").iterdir()) == ["extra", "model.onnx"]
        assert not (folder / "1").exists()
        (source / "config.pbtxt").write_text("theirs")
        (source / "7").mkdir()
        folder = put_model(repository, "m", "", source, PLAIN)
        assert ((folder / "config.pbtxt").read_text(), (folder / "7").is_dir()) == ("theirs", True)
        assert [path.name for path in repository.iterdir()] == ["m"]
        remove_model(folder)
        assert list(repository.iterdir()) == []

    def test_a_source_that_breaks_off_leaves_what_was_there(self, tmp_path: Path) -> None:
        repository = tmp_path / "repository"
        repository.mkdir()
        (tmp_path / "model.py").write_text("old")
        put_model(repository, "m", "", tmp_path / "model.py", PLAIN)
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "link").symlink_to(tmp_path / "nowhere")
        with pytest.raises(HeadwayError, match="can not be put"):
            put_model(repository, "m", "", broken, PLAIN)
        assert (repository / "m" / "1" / "model.py").read_text() == "old"
        assert [path.name for path in repository.iterdir()] == ["m"]


class TestTensors:
    def test_a_request_is_a_header_and_the_bytes_of_its_tensors(self) -> None:
        tensors = [from_array("a", np.array([1, 2], dtype=np.int16)), from_array("b", np.array([True]))]
        request = InferRequest(request_id="r", model="far", tensors=tensors, outputs=("y",), parameters={"k": 1})
        headers, body = pack_request(request)
        length = int(headers["inference-header-content-length"])
        assert json.loads(body[:length]) == {
            "id": "r",
            "inputs": [
                {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
                {"name": "b", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}},
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            "parameters": {"k": 1},
        }
        assert body[length:] == b"\x01\x00\x02\x00\x01"

    def test_an_answer_in_json_alone_is_read_too(self) -> None:
        body = json.dumps(
            {
                "outputs": [
                    {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [[0.5, 1]]},
                    {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["é", ""]},
                ]
            }
        ).encode()
        told = unpack_answer("it", {}, body)
        assert [tensor.data for tensor in told] == [
            b"\x00\x00\x00\x3f\x00\x00\x80\x3f",
            b"\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00",
        ]

    @pytest.mark.parametrize(
        "output",
        [
            {"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 400}},
            {"name": "y", "datatype": "FP32", "shape": [9], "data": [1.0]},
            {"name": "y", "datatype": "FP33", "shape": [1], "data": [1.0]},
            {"name": "y", "datatype": "INT8", "shape": [1], "data": ["one"]},
            {"name": "y", "datatype": "INT8", "shape": [-1, -1], "data": [1]},
            {"name": "y", "datatype": "INT8", "shape": [1] * 65, "data": [1]},
            {"name": "y", "datatype": "BYTES", "shape": [2], "data": ["one"]},
            {"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 0}},
            {"name": "y"},
        ],
    )
    def test_an_answer_that_is_none_is_the_servers_fault(self, output: dict[str, Any]) -> None:
        body = json.dumps({"outputs": [output]}).encode()
        with pytest.raises(UpstreamFailed, match="no tensors"):
            unpack_answer("it", {"inference-header-content-length": str(len(body))}, body)


METADATA = {
    "name": "far",
    "platform": "python",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
}
ANSWER = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
ASK = InferRequest(
    request_id="r", model="far", tensors=[from_array("x", np.array([1], dtype=np.float32))], timeout_s=None
)


@pytest.fixture
def v2(upstream: ScriptedUpstream) -> ScriptedUpstream:
    """A server that has the model "far" ready."""
    upstream.add("/v2/models/far/ready", Answer.of_json({}))
    upstream.add("/v2/models/far", Answer.of_json(METADATA))
    return upstream


class TestAsking:
    async def test_a_model_that_is_ready_is_neither_loaded_nor_unloaded(
        self, v2: ScriptedUpstream, serve: Serve
    ) -> None:
        v2.add("/v2/models/far/infer", Answer.of_json(ANSWER))
        service = await serve(framework="triton", url=v2.url)
        inferred = await service.infer(ASK)
        assert inferred.tensors == [
            wire.Tensor(name="y", datatype="FP32", shape=[1], data=b"\x00\x00\x00\x40"),
        ]
        await service.aclose()
        assert not [request for request in v2.requests if "/repository/" in request.path]

    async def test_errors_of_the_server_are_of_their_classes(self, v2: ScriptedUpstream, serve: Serve) -> None:
        v2.add(
            "/v2/models/far/infer",
            Answer.of_json({"error": "bad shape"}, 400),
            Answer.of_json({"error": "python raised"}, 500),
            Answer.of_json(ANSWER),
        )
        service = await serve(framework="triton", url=v2.url)
        with pytest.raises(InvalidRequest, match="bad shape"):
            await service.infer(ASK)
        with pytest.raises(UpstreamFailed, match="python raised"):
            await service.infer(ASK)
        await service.infer(ASK)

    async def test_a_call_that_was_not_answered_is_made_again(self, v2: ScriptedUpstream, serve: Serve) -> None:
        v2.add("/v2/models/far/infer", Answer(is_reset=True), Answer.of_json(ANSWER))
        service = await serve(framework="triton", url=v2.url, infer=InferConfig(max_retries=1))
        await service.infer(ASK)

    async def test_silence_ends_by_its_time_out(self, v2: ScriptedUpstream, serve: Serve) -> None:
        v2.add("/v2/models/far/infer", Answer(before_head=asyncio.Event()))
        service = await serve(framework="triton", url=v2.url, infer_timeout_s=0.05)
        with pytest.raises(UpstreamTimeout, match=r"0\.05 s \(options\.infer_timeout_s\)"):
            await service.infer(ASK)
        with pytest.raises(DeadlineExceeded):
            await service.infer(InferRequest(request_id="r", model="far", tensors=ASK.tensors, timeout_s=0.02))
        # The caller's own haste is no fault of the server's.
        assert service.stats()["models"]["far"]["upstream_failures_total"] == 1

    async def test_who_leaves_and_who_is_shut_down(self, v2: ScriptedUpstream, serve: Serve) -> None:
        v2.add("/v2/models/far/infer", Answer(before_head=asyncio.Event()))
        service = await serve(framework="triton", url=v2.url)
        asking = [asyncio.create_task(service.infer(ASK)) for _ in range(2)]
        await until(lambda: sum(request.path.endswith("/infer") for request in v2.requests) == 2)
        asking[0].cancel()
        await service.drain(0.0)
        async with asyncio.timeout(WAIT_S):
            told = await asyncio.gather(*asking, return_exceptions=True)
            assert isinstance(told[0], asyncio.CancelledError)
            assert isinstance(told[1], ShuttingDown)
            for request in v2.requests[-2:]:
                await request.is_left.wait()

    async def test_a_load_that_the_server_refuses_is_a_failed_load_with_its_words(
        self, upstream: ScriptedUpstream, serve: Serve
    ) -> None:
        upstream.add("/v2/models/far/ready", Answer.of_json({}, 400))
        upstream.add("/v2/repository/models/far/load", Answer.of_json({"error": "no such weights"}, 500))
        service = await serve(framework="triton", url=upstream.url)
        with pytest.raises(UpstreamFailed, match="no such weights"):
            await service.infer(ASK)
        assert service.models()[0].state == "failed"
