"""Health, version, models and metrics: what orchestrators ask."""

from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.conftest import CHAT, COMPLETION, FakeService, token

import headway
from headway.errors import CorruptCheckpoint
from headway.service.protocol import ModelCard


@pytest.mark.parametrize("path", ["/health", "/ready", "/readyz"])
async def test_readiness_follows_the_service(client: httpx2.AsyncClient, service: FakeService, path: str) -> None:
    for ready, status in (((False, "loading"), 503), ((True, ""), 200), ((False, "the worker died"), 503)):
        service.ready = ready
        response = await client.get(path)
        assert response.status_code == status
        assert (await client.head(path)).status_code == status
        assert (await client.get("/livez")).status_code == 200
        if status == 503:
            assert response.json()["reason"] == ready[1]
            assert response.headers["retry-after"] == "1"


async def test_the_version_is_the_packages(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/version")).json() == {"version": headway.__version__}


async def test_models_are_listed_and_found_by_name(client: httpx2.AsyncClient, service: FakeService) -> None:
    service.cards = [
        ModelCard("org/name", 5, "ready", 100, "/path/x.gguf"),
        ModelCard("cold", 6, "cold", None, "hub/cold"),
    ]
    first = {
        "id": "org/name",
        "created": 5,
        "root": "/path/x.gguf",
        "max_model_len": 100,
        "object": "model",
        "owned_by": "headway",
        "state": "ready",
        "kind": "model",
        "parent": None,
        "type": "text-generation",
        "framework": "headway",
        "memory_bytes": None,
        "is_pinned": False,
    }
    answer = (await client.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert answer["data"][0] == first
    assert answer["data"][1]["id"] == "cold"
    assert (await client.get("/v1/models/org/name")).json() == first
    response = await client.get("/v1/models/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def scrape(client: httpx2.AsyncClient) -> dict[str, float]:
    """name{label="value",...} to value."""
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_requests_are_counted_by_how_they_ended(client: httpx2.AsyncClient, service: FakeService) -> None:
    chat: dict[str, Any] = CHAT | {"n": 2}
    await client.post("/v1/chat/completions", json=chat)
    service.script = lambda _: [token(0, "a", finish_reason="length"), token(1, "b"), RuntimeError("x")]
    await client.post("/v1/chat/completions", json=chat)
    await client.post("/v1/completions", json=COMPLETION | {"n": 2, "stream": True})
    await client.post("/v1/completions", json=COMPLETION | {"model": "other"})
    await client.post("/v1/completions", json=COMPLETION | {"n": 0})
    await client.get("/nothing")
    found = await scrape(client)
    count = "headway_request_success_total finished_reason={} model_name=m"
    assert [found[count.format(reason)] for reason in ("stop", "length", "error")] == [2, 2, 2]
    assert found["headway_prompt_tokens_total model_name=m"] == 9
    assert found["headway_generation_tokens_total model_name=m"] == 10
    assert found["headway_e2e_request_latency_seconds_count model_name=m"] == 3
    assert found["headway_http_requests_total handler=/v1/chat/completions method=POST status=200"] == 1
    assert found["headway_http_requests_total handler=/v1/chat/completions method=POST status=500"] == 1
    assert found["headway_http_requests_total handler=/v1/completions method=POST status=400"] == 1
    assert found["headway_http_requests_total handler=none method=GET status=404"] == 1
    rejected = "headway_admission_rejections_total reason={}"
    assert [found[rejected.format(code)] for code in ("model_not_found", "invalid_value")] == [1, 1]
    assert found["headway_num_requests_running model_name=m"] == 0
    assert found["headway_http_requests_open"] == 1  # the scrape itself
    # What a caller invents becomes no label.
    assert not any("other" in name for name in found)


async def test_the_next_steps_are_asked_for_with_their_limits(client: httpx2.AsyncClient, service: FakeService) -> None:
    assert (await client.post("/admin/profile", json={})).json() == {"traceEvents": []}
    await client.post("/admin/profile", json={"model": "m", "num_steps": 3, "timeout_s": 2})
    assert service.calls == ["profile None 20 30", "profile m 3 2"]
    for body, field in (
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 1001}, "num_steps"),
        ({"timeout_s": 0}, "timeout_s"),
    ):
        response = await client.post("/admin/profile", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)


async def test_the_states_of_models_are_told(client: httpx2.AsyncClient, service: FakeService) -> None:
    error = CorruptCheckpoint("the file is cut")
    service.cards = [
        ModelCard("a", 5, "failed", 100, "/x", error, phases=(("fetch", 0.5),)),
        ModelCard("b", 6, "cold", None, "y"),
    ]
    failed, cold = (await client.get("/admin/models")).json()["models"]
    assert (failed["id"], failed["state"], failed["error"]) == ("a", "failed", "the file is cut")
    assert failed["phases"] == [{"phase": "fetch", "seconds": 0.5}]
    assert (cold["state"], cold["error"], cold["phases"]) == ("cold", None, [])


async def test_a_scrape_touches_no_model(client: httpx2.AsyncClient, service: FakeService) -> None:
    await scrape(client)
    assert not service.requests
    assert not service.calls


async def test_the_description_has_every_bodys_schema(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, name in (("/v1/chat/completions", "ChatBody"), ("/generate", "GenerateManyBody")):
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{name}"
        assert "temperature" in schemas[name]["properties"]
    assert "ChatMessage" in schemas
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert {status for operation in operations for status in operation["responses"]} == {"200"}  # a 422 never comes
    text = str(document)
    assert all(name in schemas for name in [part.split("'")[0] for part in text.split("#/components/schemas/")[1:]])
