"""The table from the error tree to HTTP."""

import json
from itertools import product

import httpx2
import pytest
from fastapi import FastAPI
from tests.server.conftest import FakeService

from headway import errors
from headway.errors import HeadwayError
from headway.server.errors import ERROR_TABLE, error_body, error_response


def tree(root: type[HeadwayError]) -> list[type[HeadwayError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_every_class_of_the_tree_is_in_the_table_and_nothing_else() -> None:
    ours = {kind for kind in tree(HeadwayError) if kind.__module__ == "headway.errors"}
    assert set(ERROR_TABLE) == ours


def test_the_status_says_whose_fault_it_is() -> None:
    allowed = {
        "caller": range(400, 500),
        "capacity": range(503, 505),
        "model": range(500, 501),
        "upstream": range(502, 505),
    }
    for kind, row in ERROR_TABLE.items():
        if kind in (errors.InvalidConfig, errors.UpstreamLimited):
            continue  # a flag's error is no fault of who calls over HTTP; another server's 429 is passed on as it is
        assert row.status in allowed.get(kind.fault, range(500, 504)), kind


@pytest.mark.parametrize("kind", sorted(ERROR_TABLE, key=lambda kind: kind.__name__))
def test_a_body_is_openais_bounded_and_says_no_class(kind: type[HeadwayError]) -> None:
    error = kind("x" * 100_000 + "\ud800", param="y" * 5000)
    response = error_response(error)
    body = json.loads(response.body)
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert len(response.body) < 4096
    assert not any(name.__name__ in response.body.decode() for name in tree(HeadwayError))


@pytest.mark.parametrize(
    "error", [ValueError("secret"), errors.InternalError("KeyError: secret"), errors.WorkerDied("Traceback secret")]
)
def test_what_is_ours_to_know_is_not_told(error: Exception) -> None:
    told = error_body(error).error.message
    assert "secret" not in told
    assert len(told) > 20


def test_an_entry_of_the_catalog_that_can_not_be_loaded_says_why() -> None:
    response = error_response(
        errors.InvalidConfig("no model '/nowhere.gguf': there is no folder /nowhere", param="model")
    )
    assert response.status_code == 500
    assert "there is no folder /nowhere" in json.loads(response.body)["error"]["message"]


@pytest.mark.parametrize(("seconds", "header"), [(None, "1"), (0.2, "1"), (2.0, "2"), (2.1, "3"), (0.0, "1")])
def test_retry_after_is_whole_seconds(seconds: float | None, header: str) -> None:
    response = error_response(errors.QueueFull("8 wait", retry_after_s=seconds))
    assert (response.status_code, response.headers["retry-after"]) == (503, header)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("GET", "/health/", 404),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/models/", 404),
        *(("POST", f"/v1/{name}", 404) for name in ("realtime", "moderations", "audio/transcriptions")),
    ],
)
async def test_the_frameworks_own_refusals_have_the_same_shape(
    client: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


MALFORMED = [
    b"",
    b"{",
    b"[1]",
    b'{"a":NaN}',
    b"[" * 100_000,
    b'{"a":' * 2000 + b"1" + b"}" * 2000,
    b" " * 100_000,
    b'{"prompt":"a\\ud800b"}',
    b'{"messages":[{"role":"user","content":"a\\udc00b"}]}',
    b'{"tools":[{"function":{"name":"\\ud800"}}]}',
    b'{"stop":["\\ud800"]}',
    b'{"\\ud800":1}',
    b'{"prompt":"\xff"}',
]


WITHOUT_BODY = {f"/admin/models/{{name}}/{act}" for act in ("load", "unload", "rollback")}
"""Routes that read none."""


async def test_a_malformed_body_is_a_400_on_every_route_there_is(app: FastAPI, client: httpx2.AsyncClient) -> None:
    routes = [path for path, methods in app.openapi()["paths"].items() if "post" in methods]
    assert {"/v1/chat/completions", "/generate_stream", "/detokenize"} <= set(routes)
    for route, data in product(routes, MALFORMED):
        if route in WITHOUT_BODY or (not data and route.startswith("/v2/repository")):
            continue  # the protocol's own routes there may have no body
        response = await client.post(route.replace("{model}", "m"), content=data)
        assert response.status_code == 400, (route, data[:40])
        error = response.json()["error"]
        assert isinstance(error, str) if route.startswith("/v2") else error["type"] == "invalid_request_error"
        assert len(response.content) < 500


@pytest.mark.parametrize(("first", "last", "status"), [("m", "other", 404), ("other", "m", 200)])
async def test_the_last_of_two_equal_keys_counts_for_the_route_and_for_the_model(
    client: httpx2.AsyncClient, service: FakeService, first: str, last: str, status: int
) -> None:
    data = f'{{"model":"{first}","prompt":"x","model":"{last}"}}'.encode()
    response = await client.post("/v1/completions", content=data)
    assert response.status_code == status
    assert [request.model for request in service.requests] == ([last] if status == 200 else [])


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", None])
async def test_the_content_type_does_not_matter(client: httpx2.AsyncClient, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    response = await client.post("/basic_generate", content=b'{"prompt":"x"}', headers=headers)
    assert response.status_code == 200
