"""The client of a running server: the real server over a scripted model, and servers that misbehave."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from headway.cli.answers import Ask
from headway.cli.remote import RemoteAnswerer, base_url
from headway.config import ServerConfig
from headway.errors import (
    HeadwayError,
    InternalError,
    InvalidConfig,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    Unauthorized,
)
from headway.server.app import make_app
from headway.server.run import HttpServer
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

HI = Ask(messages=({"role": "user", "content": "hi"},))


async def whole(answerer: RemoteAnswerer, ask: Ask) -> str:
    return "".join([f"({text})" if is_reasoning else text async for text, is_reasoning in answerer.answer(ask)])


@asynccontextmanager
async def serving(script: Script, config: ServerConfig) -> AsyncIterator[tuple[str, ScriptedService]]:
    """The real server, ready, on a free port."""
    service = ScriptedService(script)
    server = HttpServer(make_app(service, config))
    running = asyncio.ensure_future(server.serve())
    try:
        await asyncio.wait_for(service.until_ready(), 30)
        yield server.url, service
    finally:
        server.stop()
        assert await running == 0


async def test_answers_of_a_real_server_come_as_text_for_chat_and_for_prompts() -> None:
    script = Script(reply=say("Hé!"), replies={"Once": Reply(tokens=[b" upon", b" a", b" time"])})
    async with serving(script, ServerConfig(port=0, api_keys=("secret",))) as (url, service):
        answerer = await RemoteAnswerer.connect(url, api_key="secret", model=None)
        assert answerer.title == f"scripted at {url}"
        assert await whole(answerer, HI) == "Hé!"
        assert await whole(answerer, Ask(prompt="Once", options={"max_tokens": 2})) == " upon a"
        with pytest.raises(InvalidRequest, match="temperature"):
            await whole(answerer, Ask(prompt="Once", options={"temperature": -1}))
        await answerer.aclose()
        with pytest.raises(Unauthorized, match="HEADWAY_API_KEY"):
            await RemoteAnswerer.connect(url, api_key="wrong", model=None)
        lost = await RemoteAnswerer.connect(url, api_key="secret", model="other")
        with pytest.raises(ModelNotFound, match="other"):
            await whole(lost, HI)
        await lost.aclose()
        await service.until_idle()


async def test_reasoning_of_a_real_server_is_told_apart() -> None:
    script = Script(reply=say("<think>\nwhy</think>\n\nso"), reasoning_parser="qwen3")
    async with serving(script, ServerConfig(port=0)) as (url, _):
        answerer = await RemoteAnswerer.connect(url, api_key=None, model=None)
        assert await whole(answerer, HI) == "(w)(h)(y)so"
        await answerer.aclose()


async def test_closing_an_answer_ends_it_on_the_server() -> None:
    script = Script(reply=Reply(tokens=[b"a"], is_endless=True, gates={1: "never"}))
    async with serving(script, ServerConfig(port=0)) as (url, service):
        answerer = await RemoteAnswerer.connect(url, api_key=None, model=None)
        answer = answerer.answer(HI)
        assert await anext(answer) == ("a", False)
        await answer.aclose()
        await service.until_idle()
        await answerer.aclose()


def answering(handle: Callable[[httpx2.Request], httpx2.Response]) -> RemoteAnswerer:
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    return RemoteAnswerer(client, "http://h", "m")


def stream(*events: str) -> httpx2.Response:
    return httpx2.Response(200, text="".join(f"data: {event}\n\n" for event in events))


CHUNK = json.dumps({"choices": [{"delta": {"content": "x"}}]})


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        (stream(CHUNK), InternalError, r"without \[DONE\]"),
        (stream(CHUNK, "{"), InternalError, "no JSON"),
        (stream(CHUNK, "[1]"), InternalError, "no object"),
        (stream(CHUNK, json.dumps({"error": {"message": "the worker died"}}), "[DONE]"), InternalError, "worker died"),
        (httpx2.Response(500, text="<html>oops</html>"), InternalError, "the server answered 500"),
        (httpx2.Response(500, text="[]"), InternalError, "the server answered 500"),
        (httpx2.Response(502, content=b"\xff" * 200_000), InternalError, "the server answered 502"),
        (httpx2.Response(400, json={"error": {"message": "top_p is 3"}}), InvalidRequest, "top_p is 3"),
        (httpx2.Response(401, json={"error": {"message": "no key"}}), Unauthorized, "no key .*HEADWAY_API_KEY"),
        (httpx2.Response(404, json={"error": "not found"}), ModelNotFound, "the server answered 404"),
        (httpx2.Response(503, json={"error": {"message": "loading"}}), ModelNotReady, "loading"),
    ],
)
async def test_what_a_server_may_answer_wrongly_becomes_an_error_of_the_tree(
    response: httpx2.Response, kind: type[HeadwayError], words: str
) -> None:
    answerer = answering(lambda request: response)
    with pytest.raises(kind, match=words):
        await whole(answerer, HI)
    await answerer.aclose()


async def test_events_that_carry_no_text_and_lines_that_are_no_data_are_passed_over() -> None:
    events = [
        json.dumps({"choices": [{"delta": {"role": "assistant"}}]}),
        json.dumps({"choices": [{"delta": {"content": None}}]}),
        CHUNK,
        json.dumps({"choices": [], "usage": {}}),
        "[DONE]",
    ]
    text = ": a comment\n\nevent: x\n" + "".join(f"data:{event}\r\n\r\n" for event in events)
    answerer = answering(lambda request: httpx2.Response(200, text=text))
    assert await whole(answerer, HI) == "x"
    await answerer.aclose()


async def test_a_connection_that_breaks_is_told() -> None:
    def breaks(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("reset by peer")

    answerer = answering(breaks)
    with pytest.raises(InternalError, match=r"the connection to http://h broke: reset by peer"):
        await whole(answerer, HI)
    await answerer.aclose()


async def test_nobody_at_the_address_is_the_callers_mistake() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InvalidConfig, match="is `headway serve` running there"):
        await RemoteAnswerer.connect(f"http://127.0.0.1:{port}", api_key=None, model=None)


@pytest.mark.parametrize("listed", [{"data": []}, {}, [], "x"])
async def test_a_server_without_models_is_told(listed: Any) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json=listed))
    with pytest.raises(InvalidConfig, match="lists no model"):
        await RemoteAnswerer.connect("http://h", api_key=None, model=None, transport=transport)


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000/", "http://localhost:8000"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/prefix/v1/", "https://h/prefix"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_is_taken_as_people_type_it(typed: str, url: str) -> None:
    assert base_url(typed) == url


@pytest.mark.parametrize("typed", ["ftp://h", "http://", "", "http://h:port", "file:///etc"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(InvalidConfig, match="--url"):
        base_url(typed)
