"""The protocol over gRPC, by plain stubs over its own messages: what tritonclient's suite does not reach."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tests.server.conftest import listening, say
from tests.server.oip.conftest import OipService

from headway.config import ServerConfig
from headway.errors import InferenceFailed, InvalidConfig, QueueFull
from headway.server.app import make_app, server_state
from headway.server.oip.rpc.messages import COMPILED, SERVICE, message, method_messages
from headway.server.oip.rpc.server import GrpcServer
from headway.server.run import HttpServer
from headway_wire.tensors import to_array

InferRequest = message("ModelInferRequest")


class Stub:
    """Calls by their names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        request, response = method_messages(name)
        kind = self._channel.stream_stream if name == "ModelStreamInfer" else self._channel.unary_unary
        return kind(f"/{SERVICE}/{name}", request.SerializeToString, response.FromString)


@asynccontextmanager
async def serving(service: OipService, **fields: Any) -> AsyncIterator[Stub]:
    app = make_app(service, ServerConfig(port=0, grpc_port=0, **fields))
    async with listening(app) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield Stub(channel)


@pytest.fixture
async def stub(service: OipService) -> AsyncIterator[Stub]:
    async with serving(service) as stub:
        yield stub


def infer_request(kind: str, elements: list[Any], field: str, **fields: Any) -> Any:
    contents = {field: elements}
    shape = fields.pop("shape", [1, len(elements)])
    inputs = [{"name": kind, "datatype": kind, "shape": shape, "contents": contents}]
    return InferRequest(model_name="identity", inputs=inputs, **fields)


def raw_request(kind: str, shape: list[int], *raw: bytes, **fields: Any) -> Any:
    inputs = [{"name": kind, "datatype": kind, "shape": shape}]
    return InferRequest(model_name="identity", inputs=inputs, raw_input_contents=raw, **fields)


async def fails(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


def test_the_compiled_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    shutil.copy(COMPILED.with_name("open_inference.proto"), tmp_path)
    made = tmp_path / "made.binpb"
    assert protoc.main(["", f"-I{tmp_path}", f"--descriptor_set_out={made}", "open_inference.proto"]) == 0
    sets = [descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()) for path in (made, COMPILED)]
    assert sets[0] == sets[1], "make proto"


def test_the_messages_are_those_of_triton_s_clients() -> None:
    """Each field has the number, the type and the label that it has in tritonclient's messages."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    theirs = {
        each.full_name: each
        for module in (service_pb2, model_config_pb2)
        for each in module.DESCRIPTOR.message_types_by_name.values()
    }
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file
    num_fields = 0
    for ours in file.message_type:
        for field in message(ours.name).DESCRIPTOR.fields:
            their = theirs[f"inference.{ours.name}"].fields_by_name[field.name]
            assert (field.number, field.type, field.is_repeated) == (their.number, their.type, their.is_repeated)
            num_fields += 1
    assert num_fields > 80


TYPED: list[tuple[str, str, list[Any]]] = [
    ("BOOL", "bool_contents", [True, False]),
    ("UINT8", "uint_contents", [0, 255]),
    ("UINT16", "uint_contents", [0, 65535]),
    ("UINT32", "uint_contents", [0, 2**32 - 1]),
    ("UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1]),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
    ("FP32", "fp32_contents", [0.5, float("inf")]),
    ("FP64", "fp64_contents", [0.1, float("nan")]),
    ("BYTES", "bytes_contents", [b"a", b"\xff\x00"]),
]


@pytest.mark.parametrize(("kind", "field", "elements"), TYPED)
async def test_elements_in_contents_reach_the_model(
    kind: str, field: str, elements: list[Any], stub: Stub, service: OipService
) -> None:
    response = await stub.ModelInfer(infer_request(kind, elements, field, id="7"))
    assert (response.model_name, response.model_version, response.id) == ("identity", "1", "7")
    assert (response.outputs[0].name, response.outputs[0].datatype) == (f"OUT_{kind}", kind)
    assert list(response.outputs[0].shape) == [1, 2]
    array = to_array(service.asked[0].tensors[0])
    np.testing.assert_array_equal(array.reshape(-1).tolist(), elements)
    assert response.raw_output_contents[0] == service.asked[0].tensors[0].data


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (infer_request("INT8", [5, 200], "int_contents"), "INVALID_ARGUMENT", "INT8.data[1] is 200; INT8 takes"),
        (infer_request("INT32", [5], "int64_contents"), "INVALID_ARGUMENT", "INT32.data has 0 elements"),
        (infer_request("INT32", [5], "int_contents", shape=[1, 2]), "INVALID_ARGUMENT", "has 1 elements, where"),
        (infer_request("BYTES", [b"a"], "bytes_contents", shape=[1, 2]), "INVALID_ARGUMENT", "BYTES has 1 elements"),
        (infer_request("FP16", [1.5], "fp32_contents"), "INVALID_ARGUMENT", "FP16, which has no contents"),
        (infer_request("INT32", [5], "int_contents", raw_input_contents=[b"1234"]), "INVALID_ARGUMENT", "give one of"),
        (raw_request("INT32", [1, 1], b"123"), "INVALID_ARGUMENT", "INT32 has 3 bytes; INT32 of shape [1, 1] has 4"),
        (raw_request("INT32", [1, 1], b"1234", b"5"), "INVALID_ARGUMENT", "raw_input_contents has 2 entries"),
        (raw_request("INT32", [-1, 1], b""), "INVALID_ARGUMENT", "no size may be negative"),
        (raw_request("INT31", [1, 1], b"1234"), "INVALID_ARGUMENT", "the datatype 'INT31'"),
        (InferRequest(model_name="identity"), "INVALID_ARGUMENT", "inputs has 0 tensors"),
        (InferRequest(model_name="nope"), "NOT_FOUND", "there is no model 'nope' here"),
        (InferRequest(model_name="add_sub", model_version="9"), "NOT_FOUND", "has no version '9'; it has: 1, 2"),
        (
            raw_request("INT8", [1, 1], b"1", parameters={"sequence_id": {"int64_param": 4}}),
            "UNIMPLEMENTED",
            "parameters.sequence_id is not supported",
        ),
        (raw_request("INT8", [1, 1], b"1", parameters={"x": {}}), "INVALID_ARGUMENT", "parameter x has no value"),
    ],
)
async def test_a_wrong_call_is_refused_by_name(request_: Any, code: str, words: str, stub: Stub) -> None:
    found, details = await fails(stub.ModelInfer(request_))
    assert found.name == code
    assert words in details


async def test_a_failure_of_the_model_and_a_full_queue_have_their_codes(stub: Stub, service: OipService) -> None:
    service.fault = InferenceFailed("ValueError: ü" + "ä" * 5000)
    code, details = await fails(stub.ModelInfer(raw_request("INT8", [1, 1], b"1")))
    assert (code, details[:13]) == (grpc.StatusCode.INTERNAL, "ValueError: ü")
    service.fault = QueueFull("full", retry_after_s=2.5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ModelInfer(raw_request("INT8", [1, 1], b"1"))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "full")
    assert ("retry-after", "3") in list(caught.value.trailing_metadata())
    service.fault = ZeroDivisionError("secret")
    code, details = await fails(stub.ModelInfer(raw_request("INT8", [1, 1], b"1")))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in details


@pytest.mark.parametrize("ends", ["cancel", "deadline"])
async def test_a_call_that_ends_early_ends_its_inference(ends: str, stub: Stub, service: OipService) -> None:
    service.gate = asyncio.Event()
    call = stub.ModelInfer(raw_request("INT8", [1, 1], b"1"), timeout=0.2 if ends == "deadline" else None)
    await service.wait_until(lambda: bool(service.asked))
    if ends == "cancel":
        call.cancel()
    await service.wait_until(lambda: service.num_cancelled == 1)


async def test_every_method_there_is_asks_for_a_key_but_the_health_s(service: OipService) -> None:
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file
    names = {method.name for each in file.service for method in each.method}
    assert {"ModelInfer", "ModelStreamInfer", "RepositoryModelUnload"} <= names
    async with serving(service, api_keys=("k",)) as stub:
        for name in names - {"ServerLive", "ServerReady", "ServerMetadata"}:
            asked = method_messages(name)[0]()
            call = getattr(stub, name)
            answer = call(iter([asked])).read() if name == "ModelStreamInfer" else call(asked)
            assert (await fails(answer))[0] is grpc.StatusCode.UNAUTHENTICATED, name
    assert not service.asked


async def test_a_key_is_asked_for_but_not_by_health(service: OipService) -> None:
    async with serving(service, api_keys=("k",)) as stub:
        for metadata in ([], [("authorization", "Bearer x")], [("x-api-key", "x")]):
            code, _ = await fails(stub.ModelInfer(raw_request("INT8", [1, 1], b"1"), metadata=metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED
        for metadata in ([("authorization", "Bearer k")], [("x-api-key", "k")]):
            await stub.ModelInfer(raw_request("INT8", [1, 1], b"1"), metadata=metadata)
        stream = stub.ModelStreamInfer()
        await stream.write(raw_request("INT8", [1, 1], b"1"))
        assert (await fails(stream.read()))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (await stub.ServerReady(message("ServerReadyRequest")())).ready
        assert (await stub.ServerLive(message("ServerLiveRequest")())).live


async def test_a_message_over_the_largest_body_is_refused(service: OipService) -> None:
    async with serving(service, max_body_bytes=2000) as stub:
        code, _ = await fails(stub.ModelInfer(raw_request("INT8", [1, 3000], b"1" * 3000)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_comes_while_the_server_ends_is_refused(service: OipService) -> None:
    app = make_app(service, ServerConfig(port=0, grpc_port=0))
    async with listening(app) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        server_state(app).is_draining = True
        code, _ = await fails(Stub(channel).ModelInfer(raw_request("INT8", [1, 1], b"1")))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert not (await Stub(channel).ServerReady(message("ServerReadyRequest")())).ready


async def test_a_stream_answers_each_request_and_tells_which_failed(stub: Stub, service: OipService) -> None:
    stream = stub.ModelStreamInfer()
    await stream.write(raw_request("INT8", [1, 1], b"\x05", id="a"))
    first = await stream.read()
    assert (first.error_message, first.infer_response.id) == ("", "a")
    assert first.infer_response.parameters["triton_final_response"].bool_param
    await stream.write(raw_request("INT8", [1, 2], b"\x05", id="b"))
    second = await stream.read()
    assert second.error_message == "INT8 has 1 bytes; INT8 of shape [1, 2] has 2"
    assert second.infer_response.id == "b"
    await stream.write(raw_request("INT8", [1, 1], b"\x07", id="c"))
    assert (await stream.read()).infer_response.raw_output_contents == [b"\x07"]
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF


async def test_a_slow_request_of_a_stream_holds_no_other_up(stub: Stub, service: OipService) -> None:
    service.gate = gate = asyncio.Event()
    stream = stub.ModelStreamInfer()
    await stream.write(raw_request("INT8", [1, 1], b"\x05", id="slow"))
    await service.wait_until(lambda: len(service.asked) == 1)
    service.gate = None
    await stream.write(raw_request("INT8", [1, 1], b"\x06", id="fast"))
    assert (await stream.read()).infer_response.id == "fast"
    gate.set()
    assert (await stream.read()).infer_response.id == "slow"
    await stream.done_writing()


async def test_a_stream_whose_client_leaves_ends_its_inferences(stub: Stub, service: OipService) -> None:
    service.gate = asyncio.Event()
    stream = stub.ModelStreamInfer()
    for name in ("a", "b"):
        await stream.write(raw_request("INT8", [1, 1], b"\x05", id=name))
    await service.wait_until(lambda: len(service.asked) == 2)
    stream.cancel()
    await service.wait_until(lambda: service.num_cancelled == 2)


def text_request(text: str, *, is_stream: bool, **parameters: Any) -> Any:
    element = text.encode()
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [element]}},
        {"name": "stream", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [is_stream]}},
    ]
    return InferRequest(model_name="m", id="7", inputs=inputs, parameters=parameters)


def text_of(response: Any, name: str = "text_output") -> str:
    names = [output.name for output in response.outputs]
    return response.raw_output_contents[names.index(name)][4:].decode() if name in names else ""


async def test_a_language_model_streams_its_text(stub: Stub, service: OipService) -> None:
    service.script = say("Hel", "lo", "!")
    stream = stub.ModelStreamInfer()
    await stream.write(text_request("hi", is_stream=True, max_tokens={"int64_param": 3}))
    await stream.done_writing()
    answers = [answer.infer_response async for answer in stream]
    assert [text_of(answer) for answer in answers] == ["Hel", "lo", "!"]
    assert [answer.parameters["triton_final_response"].bool_param for answer in answers] == [False, False, True]
    assert text_of(answers[-1], "finish_reason") == "stop"
    assert {answer.id for answer in answers} == {"7"}
    assert service.requests[0].sampling.max_tokens == 3


async def test_a_language_model_answers_whole_where_no_stream_is_wanted(stub: Stub, service: OipService) -> None:
    service.script = say("Hel", "lo", "!")
    response = await stub.ModelInfer(text_request("hi", is_stream=False))
    assert (text_of(response), text_of(response, "finish_reason")) == ("Hello!", "stop")
    code, details = await fails(stub.ModelInfer(text_request("hi", is_stream=True)))
    assert (code, details[:14]) == (grpc.StatusCode.UNIMPLEMENTED, "stream is true")


async def test_a_text_stream_whose_client_leaves_is_aborted(stub: Stub, service: OipService) -> None:
    service.script = lambda _: [*say("a", "b")(_)[:1], asyncio.Event()]
    stream = stub.ModelStreamInfer()
    await stream.write(text_request("hi", is_stream=True))
    assert text_of((await stream.read()).infer_response) == "a"
    stream.cancel()
    await service.wait_until(lambda: bool(service.aborted))


async def test_calls_are_counted_by_method_and_code(service: OipService) -> None:
    app = make_app(service, ServerConfig(port=0, grpc_port=0))
    async with listening(app) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        await Stub(channel).ModelInfer(raw_request("INT8", [1, 1], b"1"))
        await fails(Stub(channel).ModelInfer(raw_request("INT8", [1, 2], b"1")))
        text = server_state(app).metrics.render().decode()
    assert 'headway_grpc_requests_total{code="OK",method="ModelInfer"} 1.0' in text
    assert 'headway_grpc_requests_total{code="INVALID_ARGUMENT",method="ModelInfer"} 1.0' in text


async def test_a_port_that_is_taken_is_told(service: OipService) -> None:
    state = server_state(make_app(service, ServerConfig(port=0)))
    first = GrpcServer(state, "127.0.0.1", 0)
    await first.start()
    with pytest.raises(InvalidConfig, match=f"port {first.port}: choose another --grpc-port"):
        GrpcServer(state, "127.0.0.1", first.port)
    server = HttpServer(make_app(service, ServerConfig(port=0, grpc_port=first.port)))
    with pytest.raises(InvalidConfig, match="choose another --grpc-port"):
        await server.serve()
    await first.stop(0)
