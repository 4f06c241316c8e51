"""POST /predict: any model, by one route."""

import base64
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import numpy as np
import pytest

from headway.core.embedding import Embedded, EmbedRequest
from headway.core.infer import Inferred, InferRequest
from headway.errors import InferenceFailed, ModelNotFound
from headway.server.app import make_app
from headway.server.basic.predict_input import MAX_DEPTH
from headway.service.protocol import ModelCard
from headway_wire.tensors import from_array, to_array
from server.conftest import FakeService, client_of

CARD = ModelCard("m", 1700000000, "ready", 2048, "here", model="m")
TENSORS = replace(CARD, id="t", model="t", framework="onnx", type="tensor", max_model_len=None)
IMAGES = replace(TENSORS, id="i", model="i", type="image-classification")
ENCODER = replace(CARD, id="e", model="e", type="embedding")
PIXELS = b"\x89PNG\x00"


@dataclass
class InferService(FakeService):
    """What it is asked is kept; tensors come back doubled, values as they are."""

    cards: list[ModelCard] = field(default_factory=lambda: [CARD, TENSORS, IMAGES, ENCODER])
    asked: list[InferRequest] = field(default_factory=list)
    labels: list[str] | None = None
    phases: tuple[tuple[str, float], ...] = ()
    fault: Exception | None = None
    value: Any = None
    """Comes back in place of the request's own."""

    async def infer(self, request: InferRequest) -> Inferred:
        self.asked.append(request)
        self.changed.set()
        if self.fault is not None:
            raise self.fault
        with np.errstate(over="ignore"):
            tensors = [from_array(f"{each.name}2", to_array(each) * 2) for each in request.tensors]
        return Inferred(
            model=request.model,
            version="3",
            tensors=tensors,
            value=request.value if self.value is None else self.value,
            labels=self.labels,
            load_phases=self.phases,
        )

    async def signature(self, model: str) -> Mapping[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}

    async def embed(self, request: EmbedRequest) -> Embedded:
        vectors = [np.array([len(each.text), 0.5], dtype="<f4").tobytes() for each in request.inputs]  # type: ignore[union-attr]
        return Embedded(vectors, [1] * len(vectors))


@pytest.fixture
def service() -> InferService:
    return InferService()


@pytest.fixture
async def client(service: InferService) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(make_app(service)) as client:
        yield client


async def predict(client: httpx2.AsyncClient, model: str, data: Any, **fields: Any) -> httpx2.Response:
    return await client.post("/predict", json={"model_id": model, "input_data": data, **fields})


@pytest.mark.parametrize("value", ["a text", ["a", "b"], [[0.5, 1.0], [2.0, 3.0]], {"age": 3, "tags": ["x"]}, 7, False])
async def test_a_value_goes_to_the_model_as_it_is_and_comes_back_as_predictions(
    value: Any, client: httpx2.AsyncClient, service: InferService
) -> None:
    response = await predict(client, "t", value, parameters={"top_k": 2}, timeout_s=1.5)
    assert response.status_code == 200
    assert response.json() == {"model_id": "t", "model_version": "3", "predictions": value}
    (asked,) = service.asked
    assert (asked.value, asked.parameters, asked.timeout_s) == (value, {"top_k": 2}, 1.5)


async def test_a_classifier_s_labels_come_with_its_predictions(
    client: httpx2.AsyncClient, service: InferService
) -> None:
    service.labels = ["cat", "dog"]
    assert (await predict(client, "t", [[0.25, 0.75]])).json() == {
        "model_id": "t",
        "model_version": "3",
        "predictions": [[0.25, 0.75]],
        "labels": ["cat", "dog"],
    }


@pytest.mark.parametrize(
    ("tensor", "datatype", "shape", "doubled"),
    [
        ({"data": [1, 2, 3, 4], "shape": [2, 2], "datatype": "INT32"}, "INT32", [2, 2], [[2, 4], [6, 8]]),
        ({"data": [[1, 2], [3, 4]], "datatype": "FP64"}, "FP64", [2, 2], [[2.0, 4.0], [6.0, 8.0]]),
        ({"data": [1, 2]}, "FP32", [2], [2.0, 4.0]),
        ({"data": [], "shape": [0]}, "FP32", [0], []),
        ({"data": [], "shape": [2, 0, 3]}, "FP32", [2, 0, 3], [[], []]),
        ({"data": 3}, "FP32", [], 6.0),
    ],
)
async def test_named_tensors_come_back_as_named_outputs(
    tensor: Any, datatype: str, shape: list[int], doubled: Any, client: httpx2.AsyncClient, service: InferService
) -> None:
    response = await predict(client, "t", {"x": tensor})
    assert response.json() == {
        "model_id": "t",
        "model_version": "3",
        "outputs": {"x2": {"datatype": datatype, "shape": shape, "data": doubled}},
    }
    assert (service.asked[0].tensors[0].datatype, service.asked[0].tensors[0].shape) == (datatype, shape)


@pytest.mark.parametrize(
    ("data", "datatype"),
    [([1, 2], "INT64"), ([1, 2.5], "FP64"), ([True, False], "BOOL"), (["a", "ü"], "BYTES"), ([[1], [2]], "INT64")],
)
async def test_a_datatype_that_nobody_names_is_told_by_the_data(
    data: Any, datatype: str, client: httpx2.AsyncClient, service: InferService
) -> None:
    service.fault = InferenceFailed("stop here")
    await predict(client, "t", {"unknown": {"data": data}})
    assert service.asked[0].tensors[0].datatype == datatype


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"data": [1, "a"]}, "input_data.y has no datatype"),
        ({"data": [300], "datatype": "UINT8"}, "is 300; UINT8 takes integers from 0 to 255"),
        ({"data": [1], "shape": [2], "datatype": "FP32"}, "has 1 elements"),
        ({"data": [1], "shape": "2", "datatype": "FP32"}, "input_data.y.shape is a string"),
        ({"data": [1], "shape": [True], "datatype": "FP32"}, "it must be a list of integers"),
        ({"data": [1], "datatype": 32}, "input_data.y.datatype is 32"),
        ({"data": [1], "datatype": "FLOAT"}, "datatype 'FLOAT'"),
    ],
)
async def test_a_wrong_tensor_is_refused_by_its_place(
    tensor: Any, words: str, client: httpx2.AsyncClient, service: InferService
) -> None:
    response = await predict(client, "t", {"y": tensor})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "input_data.y"
    assert service.asked == []


async def test_an_image_comes_as_base64_or_as_a_file(client: httpx2.AsyncClient, service: InferService) -> None:
    encoded = base64.b64encode(PIXELS).decode()
    service.fault = InferenceFailed("stop here")
    await predict(client, "i", encoded)
    await client.post("/predict", data={"model_id": "i"}, files={"file": ("cat.png", PIXELS, "image/png")})
    many = [("files", ("a.png", PIXELS)), ("files", ("b.png", b"\0"))]
    await client.post("/predict", data={"model_id": "i", "parameters": '{"top_k": 3}'}, files=many)
    assert [each.value for each in service.asked] == [PIXELS, PIXELS, [PIXELS, b"\0"]]
    assert service.asked[2].parameters == {"top_k": 3}


@pytest.mark.parametrize(("text", "value"), [("[1, 2]", [1, 2]), ("plain text", "plain text"), ('"a"', "a")])
async def test_a_form_s_input_is_json_where_it_is_some(
    text: str, value: Any, client: httpx2.AsyncClient, service: InferService
) -> None:
    form = {"model_id": (None, "t"), "input_data": (None, text)}
    assert (await client.post("/predict", files=form)).json()["predictions"] == value


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"input_data": (None, "x")}, "model_id is missing"),
        ({"model_id": (None, "t")}, "input_data is missing"),
        ({"model_id": (None, "t"), "input_data": (None, "x"), "f": ("f", b"x")}, "as a field and as files"),
        ({"model_id": (None, "t"), "input_data": (None, "x"), "parameters": (None, "{")}, "parameters is no JSON"),
        ({"model_id": (None, "t"), "input_data": (None, "x"), "other": (None, "1")}, "other is no field"),
    ],
)
async def test_a_wrong_form_is_refused_by_its_field(form: Any, words: str, client: httpx2.AsyncClient) -> None:
    response = await client.post("/predict", files=form)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


async def test_a_form_that_is_none_is_refused(client: httpx2.AsyncClient) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    for body in (b"--b\r\nno header at all", b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b--\r\n"):
        response = await client.post("/predict", content=body, headers=headers)
        assert response.status_code == 400, body
    bare = await client.post("/predict", content=b"x", headers={"content-type": "multipart/form-data"})
    assert "no valid form" in bare.json()["error"]["message"]


async def test_a_language_model_continues_texts(client: httpx2.AsyncClient, service: InferService) -> None:
    one = await predict(client, "m", "hi", parameters={"max_tokens": 5, "temperature": 0})
    assert one.json() == {"model_id": "m", "model_version": "", "predictions": "Hello!"}
    two = await predict(client, "m", ["a", "b"])
    assert two.json()["predictions"] == ["Hello!", "Hello!"]
    assert [request.sampling.max_tokens for request in service.requests] == [5, 20, 20]
    wrong = await predict(client, "m", "hi", parameters={"max_tokens": "many"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokens")


async def test_an_encoder_makes_vectors(client: httpx2.AsyncClient) -> None:
    assert (await predict(client, "e", ["a", "abc"])).json()["predictions"] == [[1.0, 0.5], [3.0, 0.5]]


@pytest.mark.parametrize("model", ["m", "e"])
@pytest.mark.parametrize("value", [3, [], [1], {"text": "a"}])
async def test_a_model_of_texts_takes_texts(model: str, value: Any, client: httpx2.AsyncClient) -> None:
    response = await predict(client, model, value)
    assert response.status_code == 400
    assert "a text or a list of texts" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input_data": 1}, "model_id"),
        ({"model_id": "", "input_data": 1}, "model"),
        ({"model_id": "t"}, "input_data"),
        ({"model_id": "t", "input_data": None}, "input_data"),
        ({"model_id": "t", "input_data": 1, "timeout_s": 0}, "timeout_s"),
        ({"model_id": "t", "input_data": 1, "parameters": []}, "parameters"),
        ({"model_id": "t", "input_data": 1, "inputs": 1}, "inputs"),
    ],
)
async def test_a_wrong_body_is_refused_by_its_field(body: Any, param: str, client: httpx2.AsyncClient) -> None:
    response = await client.post("/predict", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_model_that_is_not_there_is_a_404(client: httpx2.AsyncClient, service: InferService) -> None:
    unknown = await predict(client, "nobody", 1)
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model_id")
    service.fault = ModelNotFound("gone meanwhile")
    assert (await predict(client, "t", 1)).status_code == 404
    assert "nobody" not in (await client.get("/metrics")).text


async def test_what_json_has_no_words_for_is_null_in_a_value_and_an_error_in_a_tensor(
    client: httpx2.AsyncClient, service: InferService
) -> None:
    service.value = [0.5, math.nan, math.inf]
    assert (await predict(client, "t", 1)).json()["predictions"] == [0.5, None, None]
    huge = await predict(client, "t", {"x": {"data": [1.0, 3e38], "datatype": "FP32"}})
    assert huge.status_code == 400
    assert "has inf as element 1" in huge.json()["error"]["message"]


async def test_a_wait_for_a_load_is_told_in_server_timing(client: httpx2.AsyncClient, service: InferService) -> None:
    assert "server-timing" not in (await predict(client, "t", 1)).headers
    service.phases = (("fetch", 0.001), ("read", 1.25))
    assert (await predict(client, "t", 1)).headers["server-timing"] == "fetch;dur=1.0, read;dur=1250.0"


async def test_inferences_are_counted_by_how_they_ended(client: httpx2.AsyncClient, service: InferService) -> None:
    await predict(client, "t", 1)
    service.fault = InferenceFailed("KeyError: 'age'")
    failed = await predict(client, "t", 1)
    assert (failed.status_code, failed.json()["error"]["message"]) == (500, "KeyError: 'age'")
    text = (await client.get("/metrics")).text
    assert 'headway_infer_requests_total{model_name="t",outcome="success"} 1.0' in text
    assert 'headway_infer_requests_total{model_name="t",outcome="error"} 1.0' in text
    assert 'headway_infer_request_seconds_count{model_name="t"} 2.0' in text


@pytest.mark.parametrize("shape", [[2, 3, 0], [0, 3], [3, 0, 2], [0], [1, 2, 0, 4]])
async def test_a_tensor_without_elements_is_nested_as_its_shape_is(
    shape: list[int], client: httpx2.AsyncClient
) -> None:
    given = {"x": {"data": [], "shape": shape, "datatype": "FP32"}}
    assert (await predict(client, "t", given)).json()["outputs"]["x2"]["data"] == np.empty(shape).tolist()


async def test_lists_of_nothing_do_not_fill_the_memory(client: httpx2.AsyncClient) -> None:
    response = await predict(client, "t", {"x": {"data": [], "shape": [1 << 40, 0], "datatype": "FP32"}})
    assert response.status_code == 400
    assert "1099511627776 empty lists, at most 1048576" in response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 500, 1000])
@pytest.mark.parametrize(("model", "field"), [("t", "input_data"), ("i", "input_data"), ("t", "parameters")])
@pytest.mark.parametrize("pair", ["[]", "{}"])
async def test_what_is_nested_too_deeply_is_refused(
    depth: int, model: str, field: str, pair: str, client: httpx2.AsyncClient, service: InferService
) -> None:
    opening = "[" if pair == "[]" else '{"a":'
    value = opening * depth + "1" + pair[1] * depth
    others = "" if field == "input_data" else '"input_data": 1, '
    body = f'{{"model_id": "{model}", {others}"{field}": {{"a": {value}}}}}'
    response = await client.post("/predict", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{field} has over {MAX_DEPTH}")
    assert not service.asked


async def test_a_null_is_left_out_in_a_tensor_too(client: httpx2.AsyncClient, service: InferService) -> None:
    response = await predict(client, "t", {"x": {"data": [[1.5]], "shape": None, "datatype": None}})
    assert response.json()["outputs"]["x2"] == {"datatype": "FP32", "shape": [1, 1], "data": [[3.0]]}


@pytest.mark.parametrize("charset", ["undefined", "punycode", "idna", "rot13", "zip", "nonsense", "utf-16"])
async def test_no_charset_of_a_form_is_a_fault_of_ours(charset: str, client: httpx2.AsyncClient) -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="model_id"\r\n\r\nt\xff\xfe..a\r\n--B--\r\n'
    headers = {"content-type": f"multipart/form-data; boundary=B; charset={charset}"}
    assert (await client.post("/predict", content=body, headers=headers)).status_code == 400
