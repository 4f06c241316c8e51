"""A service of plain values behind the real app: what it answers is written in the test, and what it got is kept."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from headway.config import ServerConfig
from headway.core.output import Logprob, PromptOutput, TextDelta, TokenLogprob, Usage
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt
from headway.errors import InvalidRequest, ModelNotFound
from headway.server.app import make_app
from headway.server.run import Announcements, HttpServer
from headway.service.protocol import ModelCard
from headway.testing.scripted_service import ScriptedService

CONTEXT = 2048
Script = Callable[[GenerateRequest], Sequence[TextDelta | Exception | asyncio.Event]]


def token(choice: int, text: str, token_id: int = 7, logprob: float = -0.5, **end: Any) -> TextDelta:
    """A delta of one token."""
    chosen = Logprob(token_id, text, text.encode(), logprob)
    other = Logprob(token_id + 1, "?", b"?", -2.0)
    return TextDelta(choice, text, (token_id,), (TokenLogprob(chosen, (chosen, other)),), **end)


def say(*pieces: str, finish_reason: str = "stop") -> Script:
    """Each choice says the pieces, a token each; the last one carries the end."""

    def script(request: GenerateRequest) -> list[TextDelta]:
        rounds = [[token(choice, piece) for choice in range(request.sampling.n)] for piece in pieces[:-1]]
        ends = [token(c, pieces[-1], finish_reason=finish_reason) for c in range(request.sampling.n)]
        return [delta for one in [*rounds, ends] for delta in one]

    return script


class FakeStream:
    """Plays a script; an Event is waited for, an exception raised."""

    def __init__(self, service: "FakeService", request: GenerateRequest, prompt_token_ids: list[int]) -> None:
        self.prompt_token_ids = prompt_token_ids
        self.model = request.model
        self._service = service
        self._request = request
        self._num_output_tokens = 0
        self._is_ended = False
        self._iterator: AsyncIterator[TextDelta] | None = None

    async def feed(self, take: Callable[[Sequence[TextDelta]], bool], offer_events: object = None) -> bool:
        """One at a time."""
        self._iterator = self._iterator or aiter(self)
        async for delta in self._iterator:
            if not take([delta]):
                return True
        return False

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        for item in self._service.script(self._request):
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                self._end()
                raise item
            else:
                self._num_output_tokens += len(item.token_ids)
                yield item
                await asyncio.sleep(0)
        self._end()

    async def __aenter__(self) -> "FakeStream":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if not self._is_ended:
            self._end()
            self._service.aborted.append(self._request.request_id)
            self._service.changed.set()

    @property
    def prompt(self) -> PromptOutput:
        """Token i has the log-probability -i, and the likeliest one there is 9."""
        ids = tuple(self.prompt_token_ids)
        prompt = self._request.prompt
        text = prompt.text if isinstance(prompt, TextPrompt) else bytes(each % 256 for each in ids).decode()
        if self._request.sampling.prompt_logprobs is None:
            return PromptOutput(text, ids)
        return PromptOutput(text, ids, tuple(self._scored(place, token) for place, token in enumerate(ids)))

    def _scored(self, place: int, token_id: int) -> TokenLogprob:
        raw = bytes([token_id]) if token_id < 256 else b""
        chosen = Logprob(token_id, raw.decode() or "<s>", raw, -float(place) if place else math.nan)
        likeliest = (Logprob(9, "\t", b"\t", -0.25), chosen)[: self._request.sampling.prompt_logprobs]
        return TokenLogprob(chosen, likeliest if place else ())

    @property
    def usage(self) -> Usage:
        return Usage(len(self.prompt_token_ids), self._num_output_tokens, self._service.num_cached_tokens)

    def _end(self) -> None:
        self._is_ended = True
        self._service.open.discard(self._request.request_id)


@dataclass
class FakeService:
    """service/protocol.Service: a token is a byte of the prompt."""

    script: Script = field(default_factory=lambda: say("Hel", "lo", "!"))
    cards: list[ModelCard] = field(default_factory=lambda: [ModelCard("m", 1700000000, "ready", CONTEXT, "here")])
    ready: tuple[bool, str] = (True, "")
    defaults: Mapping[str, Any] = field(default_factory=dict)
    accepting: asyncio.Event | None = None
    """generate() waits for it: a queue."""
    refusal: Exception | None = None
    num_cached_tokens: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[str] = field(default_factory=list)

    def models(self) -> list[ModelCard]:
        return self.cards

    def card(self, model: str) -> ModelCard:
        found = next((card for card in self.cards if card.id == model), None)
        if found is None:
            raise ModelNotFound("no model of that name is served", param="model")
        return found

    def is_ready(self) -> tuple[bool, str]:
        return self.ready

    async def generate(self, request: GenerateRequest) -> FakeStream:
        self.requests.append(request)
        self.changed.set()
        if request.model not in [card.id for card in self.cards]:
            raise ModelNotFound("no model of that name is served", param="model")
        if self.accepting is not None:
            try:
                await self.accepting.wait()
            except asyncio.CancelledError:
                self.aborted.append(request.request_id)
                self.changed.set()
                raise
        if self.refusal is not None:
            raise self.refusal
        stream = FakeStream(self, request, await self.tokenize(request.model, request.prompt))
        self.open.add(request.request_id)
        return stream

    async def tokenize(self, model: str, prompt: Prompt) -> list[int]:
        if model not in [card.id for card in self.cards]:
            raise ModelNotFound("no model of that name is served", param="model")
        if isinstance(prompt, TextPrompt):
            return [*([256] if prompt.add_special_tokens else []), *prompt.text.encode()]
        if isinstance(prompt, ChatPrompt):
            return [256, *"".join(m["content"] for m in prompt.messages).encode()]
        return list(prompt.token_ids)

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        await self.generation_defaults(model)
        if any(not 0 <= i < 256 for i in token_ids):
            raise InvalidRequest("tokens has an id outside the vocabulary", param="tokens")
        return bytes(token_ids).decode(errors="replace")

    async def token_texts(self, model: str, token_ids: Sequence[int]) -> list[str]:
        return ["<s>" if i == 256 else chr(i) for i in token_ids]

    async def generation_defaults(self, model: str) -> Mapping[str, Any]:
        if model not in [card.id for card in self.cards]:
            raise ModelNotFound("no model of that name is served", param="model")
        return self.defaults

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        return {"models": {"m": {"num_running": float(len(self.open))}}, "pool": {"pool": {"leases": 0.0}}}

    async def profile(self, model: str | None, num_steps: int, timeout_s: float) -> Mapping[str, Any]:
        self.calls.append(f"profile {model} {num_steps} {timeout_s:g}")
        return {"traceEvents": []}

    async def start(self) -> None:
        self.calls.append("start")

    async def drain(self, timeout_s: float) -> None:
        self.calls.append("drain")

    async def aclose(self) -> None:
        self.calls.append("aclose")

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits on events until it holds."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def app(service: FakeService) -> FastAPI:
    return make_app(service)


def client_of(app: FastAPI) -> httpx2.AsyncClient:
    """A client in memory: no socket."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test")


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as client:
        yield client


def sse(text: str) -> list[Any]:
    """The events of a stream, [DONE] as it is; checks the framing."""
    assert text.endswith("\n\n"), text[-40:]
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events), events
    return [json.loads(event[6:]) if event != "data: [DONE]" else "[DONE]" for event in events]


def sse_events(text: str) -> list[tuple[str, Any]]:
    """The events of a stream whose events have names; checks the framing."""
    assert text.endswith("\n\n"), text[-40:]
    lines = [event.split("\n") for event in text[:-2].split("\n\n")]
    assert all(len(event) == 2 for event in lines), lines
    assert all(name.startswith("event: ") and data.startswith("data: ") for name, data in lines), lines
    return [(name[7:], json.loads(data[6:])) for name, data in lines]


CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncIterator[HttpServer]:
    """The app on a real socket, on this loop."""
    started = asyncio.Event()
    server = HttpServer(app, Announcements(on_listening=lambda _: started.set()))
    serving = asyncio.ensure_future(server.serve())
    try:
        async with asyncio.timeout(10):
            await started.wait()
        yield server
    finally:
        server.stop()
        assert await asyncio.wait_for(serving, 30) == 0


@asynccontextmanager
async def serving(service: ScriptedService, key: str) -> AsyncIterator[HttpServer]:
    """A scripted model behind the real app and a key; after it the engine lives and nothing is left in it."""
    async with listening(make_app(service, ServerConfig(port=0, api_keys=(key,)))) as server:
        await service.until_ready()
        yield server
        await service.until_idle()
        async with httpx2.AsyncClient(base_url=server.url) as plain:
            assert (await plain.get("/health")).status_code == 200
            text = (await plain.get("/metrics", headers={"authorization": f"Bearer {key}"})).text
        assert 'headway_num_requests_running{model_name="scripted"} 0.0' in text
        assert 'headway_requests_open{model_name="scripted"} 0.0' in text


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Lets the loop run until it holds: for what a thread or a socket does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        await asyncio.sleep(0.001)
