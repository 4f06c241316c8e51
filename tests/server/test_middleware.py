"""What every request passes: keys, size limits, origins, ids, the shutdown gate, and the last word on exceptions."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from tests.server.conftest import CHAT, FakeService, client_of

from headway.config import ServerConfig
from headway.server.app import make_app, server_state
from headway.server.hosts import AllowedHosts
from headway.server.middleware import BODY_EXTENSION, OPEN_PATHS, BodyLimit, Origins
from headway.server.origins import LOCAL_ORIGINS

KEYS = ("first-key", "zweiter-schlüssel")


@pytest.fixture
async def locked(service: FakeService) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(make_app(service, ServerConfig(api_keys=KEYS))) as client:
        yield client


WRONG: list[list[tuple[bytes, bytes]]] = [
    [],
    [(b"authorization", b"Bearer wrong")],
    [(b"authorization", b"bearer wrong")],
    [(b"authorization", b"Bearer ")],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"first-key")],
    [(b"authorization", b"Basic first-key")],
    [(b"authorization", b"Bearer first-key extra")],
    [(b"authorization", b"Bearer FIRST-KEY")],
    [(b"authorization", b"Bearer first-ke")],
    [(b"authorization", b"Bearer \xff\xfe")],
    [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer first-key")],
    [(b"x-api-key", b"wrong")],
    [(b"x-api-key", b"Bearer first-key")],
    [(b"x-api-key", b"wrong"), (b"x-api-key", b"first-key")],
    [(b"authorization", b"Bearer wrong"), (b"x-api-key", b"first-key")],
]


async def test_every_route_there_is_asks_for_a_key_but_the_health_routes(locked: httpx2.AsyncClient) -> None:
    app = make_app(FakeService(), ServerConfig(api_keys=KEYS))
    paths = app.openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert {("POST", "/v1/chat/completions"), ("GET", "/metrics"), ("POST", "/detokenize")} <= routes
    assert {("POST", "/predict"), ("DELETE", "/admin/models/{name}"), ("POST", "/v2/models/{model}/infer")} <= routes
    routes |= {("GET", "/docs"), ("GET", "/openapi.json")}
    for method, path in [*sorted(routes), ("GET", "/nothing"), ("GET", "//health"), ("GET", "/health/../metrics")]:
        for headers in WRONG:
            response = await locked.request(method, re.sub(r"\{\w+\}", "m", path), headers=headers)
            if path in OPEN_PATHS:
                assert response.status_code != 401, path
                continue
            assert response.status_code == 401, (path, headers)
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]
            assert isinstance(error, str) if path.startswith("/v2") else error["type"] == "authentication_error"
            assert "first-key" not in response.text


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer first-key")],
        [(b"authorization", b"bearer first-key")],
        [(b"authorization", b"Bearer  first-key ")],
        [(b"authorization", "Bearer zweiter-schlüssel".encode())],
        [(b"x-api-key", b"first-key")],
        [(b"x-api-key", "zweiter-schlüssel".encode())],
        [(b"authorization", b"Bearer first-key"), (b"x-api-key", b"wrong")],
    ],
)
async def test_any_of_the_keys_opens(locked: httpx2.AsyncClient, headers: list[tuple[bytes, bytes]]) -> None:
    response = await locked.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 200


async def test_health_without_a_key_tells_no_reasons(service: FakeService) -> None:
    service.ready = (False, "model m failed: /secret/path is corrupt")
    async with client_of(make_app(service, ServerConfig(api_keys=KEYS))) as client:
        response = await client.get("/readyz")
        assert (response.status_code, "secret" in response.text) == (503, False)
    async with client_of(make_app(service)) as client:
        assert "secret" in (await client.get("/readyz")).text


LIMIT = 1000


@pytest.fixture
async def small(service: FakeService) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(make_app(service, ServerConfig(max_body_bytes=LIMIT))) as client:
        yield client


async def chunks(size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, 100):
        yield b" " * min(100, size - start)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/generate", "/tokenize"])
async def test_a_long_body_is_a_413_with_both_numbers(small: httpx2.AsyncClient, route: str) -> None:
    response = await small.post(route, content=b" " * (LIMIT + 1))
    assert response.status_code == 413
    assert "1001 bytes, at most 1000" in response.json()["error"]["message"]
    response = await small.post(route, content=chunks(LIMIT + 1))
    assert response.status_code == 413
    assert "1001 bytes, at most 1000" in response.json()["error"]["message"]
    for content in (b" " * LIMIT, chunks(LIMIT)):
        assert (await small.post(route, content=content)).status_code == 400  # no JSON, but short enough


@pytest.mark.parametrize("extensions", [{}, {BODY_EXTENSION: lambda: False}])
async def test_a_body_that_does_not_come_is_a_408(extensions: dict[str, Any]) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    limited = BodyLimit(app, max_bytes=100, timeout_s=0.001)
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/tokenize", "headers": []}
    await limited({**scope, "extensions": extensions}, receive, send)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://evil.example"])
async def test_answers_have_the_headers_that_starlettes_cors_gives_them(origin: str | None) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("x")(scope, receive, send)

    headers = [] if origin is None else [(b"origin", origin.encode())]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    told: list[list[Message]] = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        told[-1].append(message)

    for layer in (Origins, CORSMiddleware):
        told.append([])
        cors = layer(app, allow_origin_regex=LOCAL_ORIGINS, expose_headers=("X-Request-Id",))
        await cors(dict(scope), receive, send)
    assert told[0] == told[1]
    assert (b"vary", b"Origin") in told[0][0]["headers"]


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        ("https://evil.example", False),
        ("http://localhost", True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1:8443", True),
        ("http://[::1]:5", True),
        ("http://localhost.evil.example", False),
        ("http://localhost:3000.evil.example", False),
        ("http://evil.example/?http://localhost", False),
        ("http://127.0.0.1.evil.example", False),
        ("null", False),
        ("https://good.example", True),
    ],
)
async def test_browsers_may_call_from_here_and_from_configured_origins(
    service: FakeService, origin: str, is_allowed: bool
) -> None:
    async with client_of(
        make_app(service, ServerConfig(api_keys=KEYS, allowed_origins=("https://good.example",)))
    ) as client:
        preflight = {"origin": origin, "access-control-request-method": "POST"}
        asked = await client.options("/v1/chat/completions", headers=preflight)
        got = await client.get("/health", headers={"origin": origin})
        refused = await client.get("/v1/models", headers={"origin": origin})
    for response in (asked, got, refused):
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == (origin if is_allowed else None)
    assert refused.status_code == 401


HOSTS = ("localhost", "127.0.0.1", "[::1]", "headway.lan")


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("LOCALHOST:8000", True),
        ("localhost.:8000", True),
        ("127.0.0.1:1", True),
        ("[::1]", True),
        ("[::1]:8000", True),
        ("headway.lan:80", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("localhost.evil.example:8000", False),
        ("localhost:8000.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:localhost", False),
        ("127.0.0.2", False),
        ("[::2]:8000", False),
        ("::1", False),
        ("", False),
    ],
)
async def test_a_server_on_this_machine_answers_to_its_own_names_only(
    service: FakeService, host: str, is_answered: bool
) -> None:
    async with client_of(make_app(service, ServerConfig(allowed_hosts=HOSTS))) as client:
        answers = [await client.get(path, headers={"host": host}) for path in ("/livez", "/v1/models", "/nothing")]
    assert [answer.status_code for answer in answers] == ([200, 200, 404] if is_answered else [403] * 3)
    if not is_answered:
        error = answers[0].json()["error"]
        assert (error["code"], error["param"]) == ("host_not_allowed", "Host")
        assert f"the Host header is {host!r}" in error["message"]
        assert "called by localhost, 127.0.0.1, [::1], headway.lan: call it by one of these" in error["message"]
        assert "--allowed-hosts" in error["message"]


async def test_each_of_several_host_headers_has_to_be_one_of_the_names() -> None:
    hosts = AllowedHosts(HOSTS)
    assert hosts.refusal([(b"host", b"localhost"), (b"host", b"evil.example")]) is not None
    assert hosts.refusal([(b"accept", b"evil.example")]) is None  # HTTP/1.0, and no browser
    long = hosts.refusal([(b"host", b"\xff" * 5000)])
    assert long is not None
    assert len(long.message) < 400


@pytest.mark.parametrize("names", [(), ("*",), ("a.lan", "*")])
async def test_any_name_is_answered_where_that_is_asked_for(service: FakeService, names: tuple[str, ...]) -> None:
    async with client_of(make_app(service, ServerConfig(allowed_hosts=names))) as client:
        assert (await client.get("/livez", headers={"host": "any.example"})).status_code == 200


async def test_a_rebound_page_reaches_no_model(service: FakeService) -> None:
    rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    async with client_of(make_app(service, ServerConfig(allowed_hosts=HOSTS))) as client:
        response = await client.post("/v1/chat/completions", json=CHAT, headers=rebound)
    assert response.status_code == 403
    assert not service.requests


@pytest.mark.parametrize(
    ("wished", "is_taken"),
    [("abc-1", True), ("A.b_c:9", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("", False)],
)
async def test_a_request_has_an_id(client: httpx2.AsyncClient, wished: str, is_taken: bool) -> None:
    response = await client.get("/livez", headers={"x-request-id": wished})
    given = response.headers["x-request-id"]
    assert (given == wished) == is_taken
    assert given.startswith("req-") or is_taken


async def test_two_requests_of_one_id_do_not_meet(client: httpx2.AsyncClient, service: FakeService) -> None:
    for _ in range(2):
        await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "same"})
    assert len({request.request_id for request in service.requests}) == 2


async def test_while_shutting_down_only_health_and_metrics_answer(service: FakeService) -> None:
    app = make_app(service)
    server_state(app).is_draining = True
    async with client_of(app) as client:
        statuses = {path: (await client.get(path)).status_code for path in sorted(OPEN_PATHS)}
        assert statuses == {
            "/health": 503,
            "/livez": 200,
            "/ready": 503,
            "/readyz": 503,
            "/version": 200,
            "/v2": 200,
            "/v2/health/live": 200,
            "/v2/health/ready": 400,
        }
        assert (await client.get("/metrics")).status_code == 200
        response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert int(response.headers["retry-after"]) >= 1
    assert not service.requests


async def test_what_nobody_caught_is_a_500_and_one_log_line(
    service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    service.models = broken  # type: ignore[assignment,method-assign]
    async with client_of(make_app(service)) as client:
        with caplog.at_level(logging.ERROR):
            response = await client.get("/v1/models", headers={"x-request-id": "abc"})
        assert response.status_code == 500
        assert response.headers["x-request-id"] == "abc"
        assert "secret" not in response.text
        assert (await client.get("/livez")).status_code == 200
    assert [record.message for record in caplog.records] == ["a request failed"]
    assert caplog.records[0].request_id == "abc"  # type: ignore[attr-defined]


async def test_no_log_line_holds_what_a_caller_wrote(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await client.post("/generate", json={"prompts": ["a secret"]})
        await client.post("/generate", json={"prompts": ["a secret"], "secret": 1})
        await client.get("/secret?secret=1")
    lines = [str(vars(record)) for record in caplog.records if record.name.startswith("headway")]
    assert len(lines) == 3
    assert not any("secret" in line for line in lines)
