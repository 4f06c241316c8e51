"""A real server's streams with the fast path and without it: the same bytes, whatever the door."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.server.conftest import listening

from headway.config import ServerConfig
from headway.server.app import make_app
from headway.server.run import HttpServer
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService
from headway.worker.fast_path import FastPath
from headway.worker.stream import RequestStream

GATE = {1: "gate"}
"""Behind the first token: the client opens it when that has come, and so when the stream is on the fast path."""
SCRIPT = Script(
    reply=say('"Hello", it said:\n', gates=GATE),
    replies={
        "wave": Reply(tokens=[b"a", b"\xf0\x9f", b"\x91", b"\x8b hi", b"\xe2\x82", b"\xac", b"\xe2"], gates=GATE),
        "several": say("several tokens in each step", tokens_per_step=3, gates={3: "gate"}),
        "fail": say("abcdef", error_at=4, gates=GATE),
        "endless": say("ab", is_endless=True, gates=GATE),
    },
)
USAGE = {"stream_options": {"include_usage": True}}
MESSAGES = {"max_tokens": 40}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "hello"}),
    "usage": ("/v1/completions", {"prompt": "hello", **USAGE}),
    "characters over tokens": ("/v1/completions", {"prompt": "wave", **USAGE}),
    "several tokens a step": ("/v1/completions", {"prompt": "several", **USAGE}),
    "an error": ("/v1/completions", {"prompt": "fail"}),
    "a length": ("/v1/completions", {"prompt": "endless", "max_tokens": 9, **USAGE}),
    "a raw text": ("/v1/completions", {"prompt": "wave", "skip_special_tokens": False}),
    "a stop string": ("/v1/completions", {"prompt": "several", "stop": "each"}),
    "log-probabilities": ("/v1/completions", {"prompt": "hello", "logprobs": 1}),
    "two choices": ("/v1/completions", {"prompt": "hello", "n": 2}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "wave"}], **USAGE}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "wave"}], **MESSAGES}),
    "responses": ("/v1/responses", {"input": "wave"}),
    "plain": ("/generate_stream", {"prompt": "wave"}),
}
USUAL = {"a stop string", "log-probabilities", "two choices", "responses"}


@pytest.fixture
async def service() -> ScriptedService:
    return ScriptedService(SCRIPT)


@pytest.fixture
async def server(service: ScriptedService) -> AsyncIterator[HttpServer]:
    async with listening(make_app(service, ServerConfig(port=0))) as server:
        await service.until_ready()
        yield server
        await service.until_idle()


async def stream(server: HttpServer, service: ScriptedService, path: str, body: dict[str, Any]) -> str:
    """The body of an answer."""
    body = body if path == "/generate_stream" else {"model": "scripted", "stream": True} | body
    pieces = []
    async with httpx2.AsyncClient(base_url=server.url) as client, client.stream("POST", path, json=body) as answer:
        async for piece in answer.aiter_text():
            pieces.append(piece)
            service.open_gate("gate")
    assert answer.status_code == 200, pieces
    return "".join(pieces)


def without_names(answer: str) -> str:
    """An answer without what differs from request to request."""
    answer = re.sub(r'"(created|created_at|completed_at)":[\d.]+', r'"\1":0', answer)
    return re.sub(r"[0-9a-f]{16,}", "id", answer)


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_stream_is_the_same_with_the_fast_path_and_without(
    server: HttpServer, service: ScriptedService, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    paths: list[FastPath] = []
    make = FastPath.__init__

    def make_noted(self: FastPath, *given: Any) -> None:
        paths.append(self)
        make(self, *given)

    monkeypatch.setattr(FastPath, "__init__", make_noted)
    path, body = REQUESTS[name]
    fast = await stream(server, service, path, body)
    num_taken = sum(path.num_tokens for path in paths)
    assert (num_taken > 0) == (name not in USUAL)
    monkeypatch.setattr(RequestStream, "_enter_fast_path", lambda self: None)
    usual = await stream(server, service, path, body)
    assert sum(path.num_tokens for path in paths) == num_taken
    assert without_names(fast) == without_names(usual)


async def test_tokens_of_both_ways_are_counted_in_one_place(server: HttpServer, service: ScriptedService) -> None:
    answer = await stream(server, service, "/v1/completions", {"prompt": "endless", "max_tokens": 30, **USAGE})
    async with httpx2.AsyncClient(base_url=server.url) as client:
        metrics = (await client.get("/metrics")).text
    assert json.loads(answer.split("data: ")[-2])["usage"]["completion_tokens"] == 30
    names = ("inter_token_latency_seconds_count", "generation_tokens_total", "request_generation_tokens_sum")
    counted = [re.findall(rf"^headway_{name}\{{.*\}} (\S+)$", metrics, re.M) for name in names]
    assert counted == [["29.0"], ["30.0"], ["30.0"]]
