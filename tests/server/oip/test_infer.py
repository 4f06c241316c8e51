"""POST .../infer: JSON and binary data, outputs, classification, versions, and what is refused."""

import asyncio
import json
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi import FastAPI
from tests.server.conftest import client_of, listening
from tests.server.oip.conftest import KINDS, OipService, add_sub_inputs, tensor

import headway_wire as wire
from headway.config import ServerConfig
from headway.errors import HeadwayError, InferenceFailed, QueueFull
from headway.server.app import make_app
from headway.server.oip.classify import classify
from headway_wire.tensors import to_array

HEADER = "inference-header-content-length"
RAW = np.array([1, 2, 3, 4], "<f4").tobytes()
SUM = {"name": "SUM", "datatype": "FP32", "shape": [1, 4], "data": [2, 3, 4, 5]}
DIFF = {"name": "DIFF", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}


async def ask(client: httpx2.AsyncClient, body: Any, model: str = "add_sub") -> httpx2.Response:
    return await client.post(f"/v2/models/{model}/infer", json=body)


async def ask_binary(
    client: httpx2.AsyncClient, body: Any, blobs: bytes, model: str = "add_sub", header: str | None = None
) -> httpx2.Response:
    head = json.dumps(body).encode()
    headers = {HEADER: str(len(head)) if header is None else header}
    return await client.post(f"/v2/models/{model}/infer", content=head + blobs, headers=headers)


def split(response: httpx2.Response) -> tuple[dict[str, Any], bytes]:
    """The JSON of an answer, and the bytes behind it."""
    length = int(response.headers[HEADER])
    return json.loads(response.content[:length]), response.content[length:]


def binary(name: str, size: int, datatype: str = "FP32", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [1, 4], "parameters": {"binary_data_size": size}}


async def test_json_in_and_json_out_with_the_id_model_and_version(client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"id": "x1", "inputs": add_sub_inputs()})
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"id": "x1", "model_name": "add_sub", "model_version": "2", "outputs": [SUM, DIFF]}


async def test_outputs_come_in_the_order_of_the_wish_and_no_others(client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": add_sub_inputs(), "outputs": [{"name": "DIFF"}, {"name": "SUM"}]})
    assert response.json() == {"model_name": "add_sub", "model_version": "2", "outputs": [DIFF, SUM]}
    response = await ask(client, {"inputs": add_sub_inputs(), "outputs": [{"name": "DIFF"}]})
    assert response.json()["outputs"] == [DIFF]


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", None])
async def test_json_is_read_whatever_its_content_type(content_type: str | None, client: httpx2.AsyncClient) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    body = json.dumps({"inputs": add_sub_inputs()}).encode()
    assert (await client.post("/v2/models/add_sub/infer", content=body, headers=headers)).status_code == 200


@pytest.mark.case("oip-nested-02")
@pytest.mark.parametrize("data", [["a", "b"], [["a"], ["b"]]])
async def test_flat_and_nested_elements_are_the_same(data: Any, client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": [tensor("BYTES", "BYTES", [2, 1], data)]}, "identity")
    assert response.json()["outputs"] == [
        {"name": "OUT_BYTES", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b"]}
    ]


@pytest.mark.case("oip-nested-02")
async def test_another_nesting_is_refused(client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": [tensor("BYTES", "BYTES", [2, 1], [["a", "b"]])]}, "identity")
    assert response.status_code == 400
    assert response.json() == {
        "error": "BYTES.data has 1 elements, where the shape [2, 1] has 2: elements come nested as the shape is, or all"
        " in one flat list"
    }


async def test_binary_inputs_stand_behind_the_json_in_order(client: httpx2.AsyncClient) -> None:
    ones = np.ones(4, "<f4").tobytes()
    body = {"inputs": [binary("INPUT0", 16), binary("INPUT1", 16)]}
    response = await ask_binary(client, body, RAW + ones)
    assert response.json()["outputs"] == [SUM, DIFF]
    mixed = {"inputs": [*add_sub_inputs()[:1], binary("INPUT1", 16)]}
    assert (await ask_binary(client, mixed, ones)).json()["outputs"] == [SUM, DIFF]


async def test_binary_outputs_stand_behind_the_json_in_order(client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": add_sub_inputs(), "parameters": {"binary_data_output": True}})
    assert response.headers["content-type"] == "application/octet-stream"
    head, blobs = split(response)
    assert head["outputs"] == [binary("SUM", 16), binary("DIFF", 16)]
    np.testing.assert_array_equal(np.frombuffer(blobs, "<f4"), [2, 3, 4, 5, 0, 1, 2, 3])


@pytest.mark.parametrize("default", [True, False, None])
async def test_an_output_says_itself_whether_it_is_binary(default: bool | None, client: httpx2.AsyncClient) -> None:
    outputs = [
        {"name": "SUM", "parameters": {"binary_data": True}},
        {"name": "DIFF", "parameters": {"binary_data": False}},
    ]
    body = {"inputs": add_sub_inputs(), "outputs": outputs, "parameters": {"binary_data_output": default}}
    head, blobs = split(await ask(client, body))
    assert head["outputs"] == [binary("SUM", 16), DIFF]
    assert blobs == np.array([2, 3, 4, 5], "<f4").tobytes()


async def test_the_largest_elements_come_with_their_places_and_labels(client: httpx2.AsyncClient) -> None:
    """What Triton 2.51 answers to the same request."""
    inputs = [
        tensor("INPUT0", "FP32", [2, 4], [4, 1, 9, 3, 5, 6, 7, 8]),
        tensor("INPUT1", "FP32", [2, 4], [0] * 8),
    ]
    outputs = [{"name": "SUM", "parameters": {"classification": 2}}]
    response = await ask(client, {"inputs": inputs, "outputs": outputs})
    data = ["9.000000:2:two", "4.000000:0:zero", "8.000000:3:three", "7.000000:2:two"]
    assert response.json()["outputs"] == [{"name": "SUM", "datatype": "BYTES", "shape": [2, 2], "data": data}]
    outputs[0]["parameters"] = {"classification": 9, "binary_data": True}
    head, blobs = split(await ask(client, {"inputs": add_sub_inputs(), "outputs": outputs}))
    assert head["outputs"][0]["shape"] == [1, 4]
    assert blobs[:21] == b"\x10\0\0\x005.000000:3:three\x0e"


@pytest.mark.parametrize(
    ("path", "version"),
    [("add_sub", "2"), ("sum", "2"), ("add_sub/versions/2", "2"), ("add_sub/versions/1", "1"), ("sum/versions/1", "1")],
)
async def test_a_version_is_asked_by_its_number(
    path: str, version: str, client: httpx2.AsyncClient, service: OipService
) -> None:
    answer = (await ask(client, {"inputs": add_sub_inputs()}, path)).json()
    assert (answer["model_name"], answer["model_version"]) == (path.split("/")[0], version)
    assert service.card(service.asked[0].model).version == version


async def test_a_name_may_have_slashes_and_a_model_without_versions_has_the_first(client: httpx2.AsyncClient) -> None:
    body = {"inputs": [tensor("INT8", "INT8", [1, 1], [5])]}
    for path in ("lab/with-slash", "lab/with-slash/versions/1", "lab%2Fwith-slash"):
        answer = (await ask(client, body, path)).json()
        assert (answer["model_name"], answer["model_version"]) == ("lab/with-slash", "1")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nope", "there is no model 'nope' here"),
        ("add_sub/versions/7", "model add_sub has no version '7'; it has: 1, 2"),
        ("add_sub/versions/..%2f1", "there is no model 'add_sub/versions/../1' here"),
    ],
)
async def test_what_is_not_there_is_not_found(path: str, message: str, client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": add_sub_inputs()}, path)
    assert (response.status_code, response.json()) == (404, {"error": message})


async def test_a_wait_for_the_load_is_told_in_a_header(client: httpx2.AsyncClient) -> None:
    response = await ask(client, {"inputs": add_sub_inputs()}, "add_sub/versions/1")
    assert response.headers["server-timing"] == "read;dur=250.0"


async def test_parameters_go_to_the_model_and_a_time_out_is_in_microseconds(
    client: httpx2.AsyncClient, service: OipService
) -> None:
    parameters = {"timeout": 1_500_000, "threshold": 0.5, "mode": "x", "priority": 0, "sequence_id": 0}
    assert (await ask(client, {"inputs": add_sub_inputs(), "parameters": parameters})).status_code == 200
    (asked,) = service.asked
    assert (asked.parameters, asked.timeout_s) == ({"threshold": 0.5, "mode": "x"}, 1.5)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "inputs is missing"),
    ({"inputs": []}, "inputs has 0 tensors; 1 to 4096 are taken"),
    ({"inputs": "x"}, "inputs is a string; it must be a list"),
    ({"inputs": add_sub_inputs(), "zzz": 1}, "zzz is no field of this route"),
    ({"inputs": add_sub_inputs(), "id": 5}, "id is 5; it must be a string"),
    ({"inputs": add_sub_inputs(name=None)}, "inputs[0].name is missing"),
    ({"inputs": add_sub_inputs(name="X")}, "no input 'X'"),
    ({"inputs": add_sub_inputs()[:1]}, "input INPUT1 is missing"),
    ({"inputs": [*add_sub_inputs(), *add_sub_inputs()[:1]]}, "input 'INPUT0' came 2 times"),
    ({"inputs": add_sub_inputs(datatype="INT32")}, "the datatype INT32; the model takes FP32"),
    ({"inputs": add_sub_inputs(datatype="FLOAT")}, "the datatype 'FLOAT'; it must be one of BOOL"),
    ({"inputs": add_sub_inputs(shape=[1, 3], data=[1, 2, 3])}, "the shape [1, 3]; the model takes [-1, 4]"),
    ({"inputs": add_sub_inputs(shape=[-1, 4])}, "the shape [-1, 4]: no size may be negative"),
    ({"inputs": add_sub_inputs(shape=[True, 4])}, "inputs[0].shape[0] is true; it must be an integer"),
    ({"inputs": add_sub_inputs(data=[1, 2, 3])}, "INPUT0.data has 3 elements, where the shape [1, 4] has 4"),
    ({"inputs": add_sub_inputs(data=[[1, 2], [3, 4]])}, "INPUT0.data has 2 elements, where the shape [1, 4] has 1"),
    ({"inputs": add_sub_inputs(data=[1, 2, "3", 4])}, "INPUT0.data[2] is a string; FP32 takes numbers"),
    ({"inputs": add_sub_inputs(data=[[1, 2, 3, True]])}, "INPUT0.data[0][3] is true; FP32 takes numbers"),
    ({"inputs": add_sub_inputs(data=[1, 2, 3, 1e300])}, "INPUT0.data[3] is 1e+300; FP32 takes numbers from -3.4"),
    ({"inputs": add_sub_inputs(data=7)}, "INPUT0.data is 7; it must be a list"),
    ({"inputs": add_sub_inputs(data=None)}, "either data or parameters.binary_data_size: it has neither"),
    ({"inputs": add_sub_inputs(parameters={"binary_data_size": 16})}, "binary_data_size: it has both"),
    ({"inputs": add_sub_inputs(parameters={"shared_memory_region": "x"})}, "INPUT0 is in shared memory, which is not"),
    ({"inputs": add_sub_inputs(), "outputs": [{"name": "NOPE"}]}, "no output 'NOPE'; it has: SUM, DIFF"),
    (
        {"inputs": add_sub_inputs(), "outputs": [{"name": "SUM", "parameters": {"classification": 0}}]},
        "classification of output SUM is 0; it must be an integer from 1",
    ),
    (
        {"inputs": add_sub_inputs(), "outputs": [{"name": "SUM", "parameters": {"binary_data": 1}}]},
        "binary_data is 1; it must be true or false",
    ),
    ({"inputs": add_sub_inputs(), "parameters": {"sequence_id": 5}}, "parameters.sequence_id is not supported"),
    ({"inputs": add_sub_inputs(), "parameters": {"priority": 1}}, "parameters.priority is not supported"),
    ({"inputs": add_sub_inputs(), "parameters": {"timeout": -1}}, "parameters.timeout is -1"),
    ({"inputs": add_sub_inputs(), "parameters": {"o": {}}}, "parameters.o is an object; it must be true or false"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED)
async def test_a_wrong_request_is_refused_by_name(body: Any, message: str, client: httpx2.AsyncClient) -> None:
    response = await ask(client, body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]


BOTH = {"inputs": [binary("INPUT0", 16), binary("INPUT1", 16)]}


@pytest.mark.parametrize(
    ("body", "blobs", "header", "message"),
    [
        (BOTH, RAW + RAW[:8], None, "INPUT1 has a binary_data_size of 16; 8 bytes are left"),
        (BOTH, RAW + RAW + b"xx", None, "2 bytes of the body belong to no input"),
        ({"inputs": [binary("INPUT0", 12), binary("INPUT1", 20)]}, RAW + RAW, None, "INPUT0 has 12 bytes; FP32 of"),
        ({"inputs": [binary("INPUT0", -1), binary("INPUT1", 16)]}, RAW, None, "binary_data_size of INPUT0 is -1"),
        (BOTH, RAW + RAW, "100000", "is '100000'; the body has"),
        (BOTH, RAW + RAW, "-1", "is '-1'; the body has"),
        (BOTH, RAW + RAW, "x", "is 'x'; the body has"),
        (BOTH, RAW + RAW, "0", "is '0'; the body has"),
        (BOTH, RAW + RAW, "9" * 5000, "is '999"),
    ],
)
async def test_binary_data_that_do_not_add_up_are_refused(
    body: Any, blobs: bytes, header: str | None, message: str, client: httpx2.AsyncClient
) -> None:
    response = await ask_binary(client, body, blobs, header=header)
    assert response.status_code == 400
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("kind", "shape", "blob", "message"),
    [
        ("BYTES", [1, 1], b"\x09\0\0\0ab", "BYTES: element 0 ends behind the tensor's 6 bytes"),
        ("BYTES", [1, 1], b"\x01\0", "BYTES: element 0 ends behind the tensor's 2 bytes"),
        ("BYTES", [1, 2], b"\x02\0\0\0ab", "BYTES has 1 elements; its shape has 2"),
        ("BYTES", [1, 1], b"\0\0\0\0" * 2, "BYTES has more elements; its shape has 1"),
        ("BOOL", [1, 2], b"\x01\x02", "BOOL has a byte 2; BOOL is a byte of 0 or 1"),
    ],
)
async def test_bytes_that_are_no_tensor_are_refused(
    kind: str, shape: list[int], blob: bytes, message: str, client: httpx2.AsyncClient
) -> None:
    body = {"inputs": [binary(kind, len(blob), kind, shape)]}
    response = await ask_binary(client, body, blob, "identity")
    assert (response.status_code, response.json()["error"][: len(message)]) == (400, message)


@pytest.mark.parametrize(
    ("kind", "blob", "message"),
    [
        ("FP32", np.array([1, np.nan], "<f4").tobytes(), "output OUT_FP32 has nan as element 1, which JSON does not"),
        ("FP64", np.array([-np.inf, 1], "<f8").tobytes(), "output OUT_FP64 has -inf as element 0, which JSON does not"),
        ("BF16", b"\0\0\0\0", "output OUT_BF16 is BF16, which JSON does not tell: ask for it as binary data"),
        ("BYTES", b"\1\0\0\0a\2\0\0\0\xff\xfe", "output OUT_BYTES has bytes that are no UTF-8 as element 1"),
    ],
)
async def test_what_json_has_no_words_for_is_told_as_binary_data_alone(
    kind: str, blob: bytes, message: str, client: httpx2.AsyncClient
) -> None:
    body: dict[str, Any] = {"inputs": [binary(kind, len(blob), kind, [1, 2])]}
    response = await ask_binary(client, body, blob, "identity")
    assert (response.status_code, response.json()["error"][: len(message)]) == (400, message)
    body["parameters"] = {"binary_data_output": True}
    assert split(await ask_binary(client, body, blob, "identity"))[1] == blob


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tensor_of_no_elements_is_one(kind: str, client: httpx2.AsyncClient, service: OipService) -> None:
    body = {"inputs": [binary(kind, 0, kind, [0, 3])], "parameters": {"binary_data_output": True}}
    head, blobs = split(await ask_binary(client, body, b"", "identity"))
    assert (head["outputs"][0]["shape"], blobs) == ([0, 3], b"")
    assert to_array(service.asked[0].tensors[0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (QueueFull("full", retry_after_s=3.0), 503, {"retry-after": "3"}),
        (InferenceFailed("ValueError: no"), 500, {}),
    ],
)
async def test_errors_have_their_statuses_and_the_protocol_s_form(
    error: HeadwayError, status: int, headers: dict[str, str], client: httpx2.AsyncClient, service: OipService
) -> None:
    service.fault = error
    response = await ask(client, {"inputs": add_sub_inputs()})
    assert (response.status_code, response.json()) == (status, {"error": error.message})
    assert headers.items() <= dict(response.headers).items()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2/models/add_sub/infer", 404), ("PUT", "/v2", 405), ("GET", "/v2/nope", 404)],
)
async def test_refusals_of_the_framework_have_the_protocol_s_form(
    method: str, path: str, status: int, client: httpx2.AsyncClient
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert list(response.json()) == ["error"]


async def test_a_key_is_asked_for_but_not_by_health(service: OipService) -> None:
    async with client_of(make_app(service, ServerConfig(api_keys=("k",)))) as client:
        refused = await ask(client, {"inputs": add_sub_inputs()})
        assert (refused.status_code, list(refused.json())) == (401, ["error"])
        client.headers["authorization"] = "Bearer k"
        assert (await ask(client, {"inputs": add_sub_inputs()})).status_code == 200
        del client.headers["authorization"]
        assert (await client.get("/v2/health/ready")).status_code == 200


async def test_a_body_over_the_limit_is_refused(service: OipService) -> None:
    async with client_of(make_app(service, ServerConfig(max_body_bytes=100))) as client:
        response = await ask(client, {"inputs": add_sub_inputs()})
        assert (response.status_code, list(response.json())) == (413, ["error"])


async def test_a_client_that_leaves_ends_its_inference(app: FastAPI, service: OipService) -> None:
    service.gate = asyncio.Event()
    async with listening(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        asking = asyncio.ensure_future(ask(client, {"inputs": add_sub_inputs()}))
        await service.wait_until(lambda: bool(service.asked))
        asking.cancel()
        await service.wait_until(lambda: service.num_cancelled == 1)
    assert await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("shape", [[2, 0], [0, 3], [0]])
def test_the_classes_of_nothing_are_none(shape: list[int]) -> None:
    made = classify(wire.Tensor(name="x", datatype="FP32", shape=shape, data=b""), 2, None)
    assert (made.shape, made.data) == ([*shape[:-1], min(2, shape[-1])], b"")
