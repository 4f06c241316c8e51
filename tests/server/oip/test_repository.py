"""What is told of the server and its models, loading them and letting them go; language models and encoders."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.server.conftest import listening, say, token, until
from tests.server.oip.conftest import LANGUAGE, OipService, add_sub_inputs, tensor

import headway
from headway.config import ModelType, ServerConfig
from headway.errors import CorruptCheckpoint, InvalidConfig, ModelNotReady, QueueFull, WorkerDied
from headway.server.app import make_app, server_state
from headway.service.frameworks import speaks_text


async def test_the_server_tells_what_it_is(client: httpx2.AsyncClient) -> None:
    told = (await client.get("/v2")).json()
    assert (told["name"], told["version"]) == ("headway", headway.__version__)
    assert {"binary_tensor_data", "model_repository", "generate"} <= set(told["extensions"])


async def test_health_is_a_status(client: httpx2.AsyncClient, service: OipService) -> None:
    assert (await client.get("/v2/health/live")).status_code == 200
    assert (await client.get("/v2/health/ready")).status_code == 200
    service.ready = (False, "loading")
    assert (await client.get("/v2/health/live")).status_code == 200
    assert (await client.get("/v2/health/ready")).status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("add_sub", 200),
        ("add_sub/versions/2", 200),
        ("add_sub/versions/1", 400),
        ("lab/with-slash", 200),
        ("nope", 404),
    ],
)
async def test_a_model_is_ready_where_it_is_resident(path: str, status: int, client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"/v2/models/{path}/ready")).status_code == status


async def test_a_model_tells_its_versions_and_tensors(client: httpx2.AsyncClient) -> None:
    told = (await client.get("/v2/models/add_sub/versions/1")).json()
    assert (told["name"], told["versions"], told["platform"]) == ("add_sub", ["1", "2"], "python")
    assert told["inputs"] == [{"name": f"INPUT{i}", "datatype": "FP32", "shape": [-1, 4]} for i in (0, 1)]
    assert [output["name"] for output in told["outputs"]] == ["SUM", "DIFF"]
    config = (await client.get("/v2/models/identity/config")).json()
    assert config["input"][-1] == {"name": "BYTES", "data_type": "TYPE_STRING", "dims": [-1, -1], "optional": True}


async def test_the_index_has_each_version_once_and_its_state(client: httpx2.AsyncClient, service: OipService) -> None:
    service.cards.append(replace(service.cards[0], id="x", model="x", state="failed", error=CorruptCheckpoint("torn")))
    service.cards.append(replace(service.cards[0], id="y", model="y", state="loading"))
    entries = {(each["name"], each["version"]): each for each in (await client.post("/v2/repository/index")).json()}
    assert entries["add_sub", "2"] == {"name": "add_sub", "version": "2", "state": "READY"}
    assert entries["add_sub", "1"]["state"] == "UNAVAILABLE"
    assert entries["x", "1"] == {"name": "x", "version": "1", "state": "UNAVAILABLE", "reason": "torn"}
    assert entries["y", "1"]["state"] == "LOADING"
    assert "sum" not in {name for name, _ in entries}
    ready = (await client.post("/v2/repository/index", json={"ready": True})).json()
    assert {each["state"] for each in ready} == {"READY"}


async def test_a_model_is_loaded_and_let_go(client: httpx2.AsyncClient, service: OipService) -> None:
    response = await client.post(
        "/v2/repository/models/identity/unload", json={"parameters": {"unload_dependents": False}}
    )
    assert (response.status_code, response.content) == (200, b"")
    assert (await client.get("/v2/models/identity/ready")).status_code == 400
    response = await client.post("/v2/repository/models/identity/load")
    assert (response.status_code, response.headers["server-timing"]) == (200, "read;dur=500.0")
    assert (await client.get("/v2/models/identity/ready")).status_code == 200
    assert service.calls[-2:] == ["cold identity", "ready identity"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("nope/load", {}, 404, "no model 'nope'"),
        ("identity/load", {"parameters": {"config": "{}"}}, 400, "config is not supported: a model is configured"),
        ("identity/load", {"parameters": {"file:1/model.onnx": ""}}, 400, "file:1/model.onnx is no field"),
        ("identity/unload", {"parameters": {"unload_dependents": True}}, 400, "unload_dependents is not supported"),
        ("identity/load", {"x": 1}, 400, "x is no field"),
    ],
)
async def test_a_wrong_load_is_refused(
    path: str, body: Any, status: int, words: str, client: httpx2.AsyncClient, service: OipService
) -> None:
    response = await client.post(f"/v2/repository/models/{path}", json=body)
    assert response.status_code == status
    assert words in response.json()["error"]
    assert service.calls == []


async def test_a_load_that_fails_tells_why(client: httpx2.AsyncClient, service: OipService) -> None:
    service.fault = ModelNotReady("it failed a moment ago", retry_after_s=7)
    response = await client.post("/v2/repository/models/identity/load")
    assert (response.status_code, response.json()) == (503, {"error": "it failed a moment ago"})
    assert response.headers["retry-after"] == "7"


async def test_inferences_are_counted_by_model_and_version(client: httpx2.AsyncClient) -> None:
    for path, inputs in (("add_sub", add_sub_inputs()), ("sum", add_sub_inputs()), ("add_sub", [])):
        await client.post(f"/v2/models/{path}/infer", json={"inputs": inputs})
    bad = add_sub_inputs(shape=[1, 3], data=[1, 2, 3])
    await client.post("/v2/models/add_sub/infer", json={"inputs": bad})
    (told,) = (await client.get("/v2/models/add_sub/stats")).json()["model_stats"]
    assert (told["version"], told["inference_count"]) == ("2", 2)
    assert told["inference_stats"]["success"]["count"] == 2
    assert told["inference_stats"]["fail"]["count"] == 1
    assert told["inference_stats"]["success"]["ns"] > 0
    assert told["last_inference"] > 1_700_000_000_000
    every = (await client.get("/v2/models/stats")).json()["model_stats"]
    assert [each["inference_count"] for each in every if each["name"] == "identity"] == [0]


async def test_generated_texts_are_counted_too(client: httpx2.AsyncClient, service: OipService) -> None:
    async def counts() -> tuple[int, int]:
        (told,) = (await client.get("/v2/models/m/stats")).json()["model_stats"]
        stats = told["inference_stats"]
        assert (stats["success"]["ns"] > 0, stats["fail"]["ns"] > 0) == (
            stats["success"]["count"] > 0,
            stats["fail"]["count"] > 0,
        )
        return stats["success"]["count"], stats["fail"]["count"]

    async def ask(way: str, **fields: Any) -> httpx2.Response:
        return await client.post(f"/v2/models/m/{way}", json={"text_input": "hi", **fields})

    assert await counts() == (0, 0)
    for number, way in enumerate(("generate", "generate_stream"), 1):
        assert (await ask(way)).status_code == 200
        assert await counts() == (number, 0)
    service.script = lambda request: [token(0, "a"), WorkerDied("gone")]
    for number, way in enumerate(("generate", "generate_stream"), 1):
        await ask(way)
        assert await counts() == (2, number)
    service.refusal = QueueFull("too many wait")
    for number, way in enumerate(("generate", "generate_stream"), 3):
        assert (await ask(way)).status_code == 503
        assert await counts() == (2, number)
    service.refusal = None
    assert (await ask("generate", parameters={"n": 2})).status_code == 400
    assert await counts() == (2, 5)


async def test_a_stream_whose_client_leaves_is_counted_as_failed(service: OipService) -> None:
    never = asyncio.Event()
    service.script = lambda request: [token(0, "a"), never]
    app = make_app(service, ServerConfig(port=0))
    async with listening(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("POST", "/v2/models/m/generate_stream", json={"text_input": "hi"}) as response:
            await anext(response.aiter_bytes())
        statistics = server_state(app).inferences.of(("m", "1"))
        await until(lambda: statistics.num_failures)
        assert (statistics.num_successes, statistics.num_failures) == (0, 1)


async def test_a_language_model_answers_with_its_text(client: httpx2.AsyncClient, service: OipService) -> None:
    service.script = say("Hel", "lo", "!")
    body = {"id": "7", "text_input": "hi", "parameters": {"temperature": 0, "max_tokens": 3, "stream": False}}
    response = await client.post("/v2/models/m/generate", json=body)
    assert response.json() == {
        "id": "7", "model_name": "m", "model_version": "1", "text_output": "Hello!", "finish_reason": "stop",
    }  # fmt: skip
    assert (service.requests[0].sampling.temperature, service.requests[0].sampling.max_tokens) == (0, 3)


async def test_a_language_model_s_text_comes_as_it_is_made(client: httpx2.AsyncClient, service: OipService) -> None:
    service.script = say("Hel", "lo", "!")
    response = await client.post("/v2/models/m/generate_stream", json={"text_input": "hi"})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]
    assert [event["text_output"] for event in events] == ["Hel", "lo", "!"]
    assert [event.get("finish_reason") for event in events] == [None, None, "stop"]
    assert {(event["model_name"], event["model_version"]) for event in events} == {("m", "1")}


async def test_a_stream_that_fails_ends_with_its_error(client: httpx2.AsyncClient, service: OipService) -> None:
    service.script = lambda request: [*say("a", "b")(request)[:1], CorruptCheckpoint("torn")]
    response = await client.post("/v2/models/m/generate_stream", json={"text_input": "hi"})
    assert response.text.endswith('data: {"error":"torn"}\n\n')


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("m/generate", {"text_input": "hi", "parameters": {"beams": 3}}, 400, "beams is no field"),
        ("m/generate", {"text_input": "hi", "parameters": {"temperature": "x"}}, 400, "temperature is a string"),
        ("m/generate", {"text_input": "hi", "stream": True}, 400, "POST .../generate_stream answers so"),
        ("m/generate_stream", {"text_input": "hi", "parameters": {"stream": False}}, 400, "POST .../generate answers"),
        ("m/generate", {"text_input": "hi", "parameters": {"n": 2}}, 400, "n is 2; this route answers with one text"),
        ("m/generate", {"text_input": "hi", "parameters": {"prompt": "x"}}, 400, "prompt is no parameter"),
        ("m/generate", {}, 400, "text_input is missing"),
        ("identity/generate", {"text_input": "hi"}, 400, "identity makes no text: POST .../infer asks it"),
        ("e/generate", {"text_input": "hi"}, 400, "e makes no text"),
        ("nope/generate", {"text_input": "hi"}, 404, "no model 'nope'"),
    ],
)
async def test_a_wrong_question_is_refused(
    path: str, body: Any, status: int, words: str, client: httpx2.AsyncClient
) -> None:
    response = await client.post(f"/v2/models/{path}", json=body)
    assert response.status_code == status
    assert words in response.json()["error"]


async def test_a_language_model_takes_tensors_too(client: httpx2.AsyncClient, service: OipService) -> None:
    service.script = say("Hel", "lo")
    inputs = [
        tensor("text_input", "BYTES", [1], ["hi"]),
        tensor("sampling_parameters", "BYTES", [1], ['{"max_tokens": 2}']),
        tensor("exclude_input_in_output", "BOOL", [1], [False]),
    ]
    body = {"inputs": inputs, "parameters": {"max_tokens": 9, "top_k": 5}}
    outputs = (await client.post("/v2/models/m/infer", json=body)).json()["outputs"]
    assert outputs == [
        {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["hiHello"]},
        {"name": "finish_reason", "datatype": "BYTES", "shape": [1], "data": ["stop"]},
    ]
    assert (service.requests[0].sampling.max_tokens, service.requests[0].sampling.top_k) == (2, 5)
    told = (await client.get("/v2/models/m")).json()
    assert [each["name"] for each in told["inputs"]][:2] == ["text_input", "stream"]
    assert told["platform"] == LANGUAGE.framework


async def test_an_encoder_takes_texts(client: httpx2.AsyncClient) -> None:
    body = {"inputs": [tensor("text_input", "BYTES", [2], ["abc", "x"])]}
    (output,) = (await client.post("/v2/models/e/infer", json=body)).json()["outputs"]
    assert output == {"name": "embedding", "datatype": "FP32", "shape": [2, 2], "data": [3, 0.5, 1, 0.5]}
    np.testing.assert_array_equal(np.array(output["data"]).reshape(2, 2)[:, 0], [3, 1])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([tensor("text", "BYTES", [1], ["a"])], "'text' is none of the model's; those are text_input, stream"),
        ([tensor("text_input", "FP32", [1], [1])], "datatype FP32; the model takes BYTES"),
        ([tensor("text_input", "BYTES", [2], ["a", "b"])], "text_input has 2 elements; it takes one"),
        ([tensor("stream", "BOOL", [1], [False])], "input 'text_input' is missing"),
        (
            [tensor("text_input", "BYTES", [1], ["a"]), tensor("sampling_parameters", "BYTES", [1], ["[]"])],
            "sampling_parameters is no JSON object",
        ),
    ],
)
async def test_tensors_that_are_no_question_are_refused(
    inputs: list[dict[str, Any]], words: str, client: httpx2.AsyncClient
) -> None:
    response = await client.post("/v2/models/m/infer", json={"inputs": inputs})
    assert response.status_code == 400
    assert words in response.json()["error"]


@pytest.mark.parametrize(
    ("framework", "model_type", "is_text"),
    [
        ("headway", "text-generation", True),
        ("headway", "embedding", True),
        ("vllm", "text-generation", True),
        ("openai", "text-generation", True),
        ("transformers", "text-generation", True),
        ("transformers", "text-classification", False),
        ("python", "python", False),
        ("triton", "tensor", False),
        ("ensemble", "tensor", False),
    ],
)
def test_which_models_are_asked_for_text(framework: str, model_type: ModelType, is_text: bool) -> None:
    assert speaks_text(framework, model_type) is is_text


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
async def test_no_page_of_another_origin_loads_or_unloads(client: httpx2.AsyncClient, verb: str, origin: str) -> None:
    path = f"/v2/repository/models/add_sub/{verb}"
    response = await client.post(path, headers={"Origin": origin})
    assert (response.status_code, list(response.json())) == (403, ["error"])
    assert (await client.post(path, headers={"Origin": "http://localhost:3000"})).status_code == 200


async def test_a_source_that_is_not_there_is_told_to_who_loads_it(
    client: httpx2.AsyncClient, service: OipService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def load(_: str) -> Any:
        raise InvalidConfig("no model '/nowhere.gguf': there is no folder /nowhere", param="model")

    monkeypatch.setattr(service, "load", load)
    for path in ("/v2/repository/models/add_sub/load", "/admin/models/add_sub/load"):
        response = await client.post(path)
        assert response.status_code == 400, path
        assert "add_sub can not be loaded: no model '/nowhere.gguf'" in response.text
