"""Whatever breaks at one step of one request ends that request alone; and what blocks is cut off."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import httpx2
import pytest
from starlette.types import Message
from tests.server.conftest import CHAT, FakeService, FakeStream, say, sse, token

from headway.core.output import TextDelta, Usage
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.server.events import ABORT_EXTENSION, EventStream
from headway.server.generation import Generation
from headway.server.openai.answers import Options
from headway.server.openai.chunks import ChatChunks
from headway.server.state import ServerState


class Fault(Exception):
    """Not in the error tree."""


def raising(*_: Any, **__: Any) -> Any:
    raise Fault("secret")


async def raising_later(*_: Any, **__: Any) -> Any:
    raise Fault("secret")


def break_both(patch: pytest.MonkeyPatch, name: str) -> None:
    """A function that whole and streamed answers share."""
    for module in ("answers", "chunks"):
        patch.setattr(f"headway.server.openai.{module}.{name}", raising)


Break = Callable[[pytest.MonkeyPatch, FakeService], None]

BEFORE_THE_200: dict[str, Break] = {
    "defaults": lambda patch, service: patch.setattr(service, "generation_defaults", raising_later),
    "accept": lambda patch, service: patch.setattr(service, "generate", raising_later),
    "accept, not even awaited": lambda patch, service: patch.setattr(service, "generate", raising),
    "convert": lambda patch, _: patch.setattr("headway.server.openai.routes.chat_request", raising),
    "answer": lambda patch, _: patch.setattr("headway.server.answer.Generation.__init__", raising),
}
AFTER_IT: dict[str, Break] = {
    "first token": lambda patch, service: patch.setattr(service, "script", lambda _: [Fault("secret")]),
    "later token": lambda patch, service: patch.setattr(service, "script", lambda _: [token(0, "a"), Fault("secret")]),
    "iterator": lambda patch, _: patch.setattr(FakeStream, "feed", raising),
    "usage": lambda patch, _: break_both(patch, "usage_out"),
    "meter": lambda patch, _: patch.setattr("headway.server.generation.RequestMeter.on_tokens", raising),
    "encode": lambda patch, _: break_both(patch, "make_answer"),
}
USAGE = {"stream_options": {"include_usage": True}, "stream": True}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("step", [*BEFORE_THE_200, *AFTER_IT])
async def test_a_fault_at_any_step_ends_that_request_alone(
    client: httpx2.AsyncClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, step: str, is_stream: bool
) -> None:
    gate = asyncio.Event()
    service.script = lambda request: [gate, *say("fine")(request)]
    running = asyncio.ensure_future(client.post("/v1/completions", json={"model": "m", "prompt": "x"}))
    await service.wait_until(lambda: bool(service.open))
    service.script = say("a", "b")
    with monkeypatch.context() as patch:
        (BEFORE_THE_200 | AFTER_IT)[step](patch, service)
        response = await client.post("/v1/chat/completions", json=CHAT | (USAGE if is_stream else {}))
        if is_stream and step in AFTER_IT:
            assert response.status_code == 200
            events = sse(response.text)
            assert events[-1] == "[DONE]"
            assert events[-2]["error"]["code"] == "internal_error"
            assert sum("error" in one for one in events) == 1
        else:
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "internal_error"
        assert "secret" not in response.text
        assert len(service.open) == 1
    gate.set()
    assert (await running).json()["choices"][0]["text"] == "fine"
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert not service.open


async def test_a_stream_that_can_not_be_closed_spoils_no_answer(
    client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeStream, "aclose", raising_later)
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    events = sse((await client.post("/v1/chat/completions", json=CHAT | {"stream": True})).text)
    assert events[-1] == "[DONE]"
    assert not any("error" in one for one in events)


async def open_generation(app: Any, service: FakeService) -> Generation:
    state: ServerState = app.state.headway
    return await Generation.open(state, [GenerateRequest("r", "m", TextPrompt("x"), SamplingParams())], 0.0)


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


CHUNKS = partial(ChatChunks, Options(id="r", has_logprobs=False))


async def test_a_client_that_reads_nothing_is_cut_off_and_its_request_ended(app: Any, service: FakeService) -> None:
    service.script = lambda _: repeat(token(0, "a"))  # type: ignore[assignment, return-value]
    stream = EventStream(await open_generation(app, service), CHUNKS, write_timeout_s=0.01)
    cut: list[bool] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await never()

    scope: dict[str, Any] = {"type": "http", "extensions": {ABORT_EXTENSION: lambda: cut.append(True)}}
    async with asyncio.timeout(10):
        await stream(scope, never, send)
    assert cut == [True]
    assert service.aborted == ["r"]


async def test_what_is_cancelled_from_outside_leaves_nothing_running(app: Any, service: FakeService) -> None:
    service.script = lambda _: [asyncio.Event()]
    stream = EventStream(await open_generation(app, service), CHUNKS, write_timeout_s=10)
    sent = asyncio.Event()

    async def send(_: Message) -> None:
        sent.set()

    task = asyncio.ensure_future(stream({"type": "http"}, never, send))
    await sent.wait()
    before = asyncio.all_tasks()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert service.aborted == ["r"]
    assert not (asyncio.all_tasks() - {asyncio.current_task()}) & before


async def test_usage_of_an_aborted_request_is_what_was_made(app: Any, service: FakeService) -> None:
    service.script = lambda _: [token(0, "a"), token(0, "b"), asyncio.Event()]
    generation = await open_generation(app, service)
    taken: list[TextDelta] = []

    class Sink:
        def take(self, first: int, deltas: Sequence[TextDelta]) -> bool:
            taken.extend(deltas)
            return len(taken) < 2

        async def drain(self) -> None:
            raise Fault("enough")

    with pytest.raises(Fault):
        await generation.feed(Sink())
    await generation.aclose()
    await generation.aclose()
    assert generation.usage == Usage(2, 2, 0)
    assert service.aborted == ["r"]
