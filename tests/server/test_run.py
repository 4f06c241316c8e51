"""How a server begins and ends, as a process with a real child."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.server.conftest import CHAT, FakeService, client_of, listening, sse, until

from headway.config import ServerConfig
from headway.errors import InvalidConfig
from headway.server.app import lifespan_of, make_app
from headway.server.listen import bind
from headway.server.run import SIGNALS, HttpServer
from headway.testing.script import Reply, Script, say

BODY = {"model": "scripted", "prompt": "x", "stream": True, "max_tokens": 1000}


def layer_called(server: HttpServer) -> object:
    """Where the server hands requests to."""
    return server._uvicorn.config.app


async def test_requests_pass_by_the_frameworks_outermost_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(FakeService(), ServerConfig(port=0))
    with bind("127.0.0.1", 0) as bound:
        assert layer_called(HttpServer(app, bound=bound)) is not app
        # Where telemetry may have been set up, its spans are made by those layers.
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk", sys)
        assert layer_called(HttpServer(app, bound=bound)) is app


class OperatorsLayer:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


async def test_a_layer_or_a_handler_that_somebody_adds_is_kept() -> None:
    async def answer(request: Request, error: Exception) -> Response:
        return Response(status_code=500)

    layered, handling = (make_app(FakeService(), ServerConfig(port=0)) for _ in range(2))
    layered.add_middleware(OperatorsLayer)
    handling.add_exception_handler(Exception, answer)
    with bind("127.0.0.1", 0) as bound:
        for app in (layered, handling):
            assert layer_called(HttpServer(app, bound=bound)) is app


@asynccontextmanager
async def serving(script: Script, drain_timeout_s: float = 30.0) -> AsyncIterator[Process]:
    program = str(Path(__file__).with_name("serve_scripted.py"))
    arguments = [msgspec.json.encode(script).decode(), str(drain_timeout_s)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def told(process: Process, word: str) -> str:
    """What the process said after `word`."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = (await process.stdout.readline()).decode()
    assert line.startswith(word), line
    return line.removeprefix(word).strip()


async def ended(process: Process) -> int:
    async with asyncio.timeout(30):
        return await process.wait()


async def unready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(10):
        while (await client.get("/readyz")).status_code != 503:
            pass


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.case("drain-01", "health-loading-01")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("is_to_all", [False, True], ids=["to the server", "to each process"])
async def test_the_first_signal_lets_streams_finish_and_takes_nothing_new(
    number: signal.Signals, is_to_all: bool
) -> None:
    async with serving(Script(reply=say("abc", gates={1: "go"}))) as process:
        url = await told(process, "listening")
        pid = int(await told(process, "ready"))
        async with (
            httpx2.AsyncClient(base_url=url, timeout=30) as client,
            client.stream("POST", "/v1/completions", json=BODY) as stream,
        ):
            assert stream.status_code == 200
            parts = stream.aiter_text()
            text = await anext(parts)
            if is_to_all:  # as a terminal's Ctrl-C, and a service manager's stop
                os.kill(pid, number)
            process.send_signal(number)
            await unready(client)
            assert (await client.get("/livez")).status_code == 200
            refused = await client.post("/v1/completions", json=BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) >= 1
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            await process.stdin.drain()
            async for part in parts:
                text += part
        events = sse(text)
        assert "".join(c["text"] for e in events[:-1] for c in e["choices"]) == "abc"
        assert events[-1] == "[DONE]"
        assert await ended(process) == 0
        assert not is_alive(pid)
        assert process.stderr is not None
        assert b"Traceback" not in await process.stderr.read()


async def test_what_does_not_finish_in_time_is_ended_and_says_so() -> None:
    async with serving(Script(reply=say("abc", gates={1: "never"})), drain_timeout_s=0.1) as process:
        url = await told(process, "listening")
        await told(process, "ready")
        async with (
            httpx2.AsyncClient(base_url=url, timeout=30) as client,
            client.stream("POST", "/v1/completions", json=BODY) as stream,
        ):
            parts = stream.aiter_text()
            text = await anext(parts)
            process.send_signal(signal.SIGINT)
            async for part in parts:
                text += part
        events = sse(text)
        assert events[-3]["choices"][0]["text"] == "a"
        assert events[-2]["error"]["code"] == "shutting_down"
        assert events[-1] == "[DONE]"
        assert await ended(process) == 0


@pytest.mark.case("drain-01")
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_all_at_once(second: signal.Signals) -> None:
    async with serving(Script(reply=Reply(tokens=[b"x"], gates={1: "never"}))) as process:
        url = await told(process, "listening")
        pid = int(await told(process, "ready"))
        async with (
            httpx2.AsyncClient(base_url=url, timeout=30) as client,
            client.stream("POST", "/v1/completions", json=BODY) as stream,
        ):
            parts = stream.aiter_text()
            await anext(parts)
            process.send_signal(signal.SIGTERM)
            await unready(client)
            process.send_signal(second)
            assert await ended(process) == -second
            await until(lambda: not is_alive(pid))


@pytest.mark.case("drain-01", "health-loading-01")
async def test_a_signal_while_the_model_loads_ends_cleanly(tmp_path: Path) -> None:
    async with serving(Script(load_waits_for=str(tmp_path / "never"))) as process:
        url = await told(process, "listening")
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            for path, status in (("/livez", 200), ("/readyz", 503), ("/health", 503)):
                assert (await client.get(path)).status_code == status
            waiting = asyncio.ensure_future(client.post("/v1/completions", json=BODY))
            async with asyncio.timeout(10):
                while "headway_pool_requests_waiting 1.0" not in (await client.get("/metrics")).text:
                    pass
            process.send_signal(signal.SIGTERM)
            assert (await waiting).status_code == 503
        assert await ended(process) == 0


async def test_a_failed_load_is_told_and_the_server_stays() -> None:
    script = Script(load_raises="no such tensor")
    async with serving(script) as process:
        url = await told(process, "listening")
        assert "scripted" in await told(process, "failed")
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig) as caught:
            bind("127.0.0.1", port)
        app = make_app(FakeService(), ServerConfig(port=port))
        with pytest.raises(InvalidConfig, match="is in use"):
            HttpServer(app)
    assert f"port {port} on 127.0.0.1 is in use" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.0.0.1", "192.0.2.1", "x" * 70])
def test_a_host_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        bind(host, 0)
    assert host in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("port", [-1, 65536, 2**40])
def test_a_port_that_is_none_is_one_clear_line(port: int) -> None:
    with pytest.raises(InvalidConfig, match=f"port is {port}"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize(("host", "start"), [("127.0.0.1", "http://127.0.0.1:"), ("0.0.0.0", "http://127.0.0.1:")])
async def test_the_url_is_one_that_works(host: str, start: str) -> None:
    async with listening(make_app(FakeService(), ServerConfig(host=host, port=0))) as server:
        assert server.url.startswith(start)
        async with httpx2.AsyncClient() as client:
            assert (await client.get(server.url + "/livez")).status_code == 200


async def test_mounted_in_another_app_everything_works_below_its_prefix(service: FakeService) -> None:
    llm = make_app(service, ServerConfig(api_keys=("key",)))
    host = FastAPI(lifespan=lambda _: lifespan_of(llm))
    host.mount("/llm", llm)

    @host.get("/health")
    async def health() -> dict[str, Any]:
        return {"mine": True}

    async with host.router.lifespan_context(host), client_of(host) as client:
        assert service.calls == ["start"]
        assert (await client.get("/health")).json() == {"mine": True}
        assert (await client.get("/llm/health")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        headers = {"authorization": "Bearer key"}
        answer = await client.post("/llm/v1/chat/completions", json=CHAT | {"stream": True}, headers=headers)
        assert sse(answer.text)[-1] == "[DONE]"
        assert (await client.get("/llm/metrics", headers=headers)).status_code == 200
        assert (await client.get("/llm/nothing", headers=headers)).json()["error"]["code"] == "not_found"
    assert service.calls == ["start", "drain", "aclose"]


async def test_the_service_is_ended_when_draining_fails(service: FakeService) -> None:
    async def drain(timeout_s: float) -> None:
        raise RuntimeError("no")

    service.drain = drain  # type: ignore[method-assign]
    app = make_app(service)
    with pytest.raises(RuntimeError):
        async with lifespan_of(app):
            pass
    assert service.calls == ["start", "aclose"]
