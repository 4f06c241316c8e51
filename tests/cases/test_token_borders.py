"""Texts cut into tokens anywhere, and engines that fail anywhere, over the real service with scripted models."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from tests.server.conftest import client_of, sse

from cases.asking import CHAT, COMPLETIONS
from headway.server.app import make_app
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

TEXT = "a,b,cdé"


@asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[tuple[ScriptedService, httpx2.AsyncClient]]:
    service = ScriptedService(script, **options)
    await service.start()
    try:
        await service.until_ready()
        async with client_of(make_app(service)) as client:
            yield service, client
            await service.until_idle()
    finally:
        await service.aclose()


def cuts(data: bytes) -> list[list[bytes]]:
    """Every way to make tokens of it."""
    found = []
    for inner in itertools.product((False, True), repeat=len(data) - 1):
        places = [0, *(place for place, is_cut in enumerate(inner, 1) if is_cut), len(data)]
        found.append([data[start:end] for start, end in itertools.pairwise(places)])
    return found


def before_stop(stops: list[str]) -> str:
    """The text before the match that is whole first; of those that end together the one that begins first."""
    ends = range(len(TEXT) + 1)
    matches = [(end, end - len(stop)) for end in ends for stop in stops if TEXT[:end].endswith(stop)]
    return TEXT[: min(matches)[1]] if matches else TEXT


@pytest.mark.case("stop-mid-token-02", "utf8-stream-01")
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stop_string_ends_the_text_wherever_tokens_are_cut(path: str) -> None:
    ways = cuts(TEXT.encode())
    replies = {f"[{number}]": Reply(tokens=tokens) for number, tokens in enumerate(ways)}
    stops = [["b,c"], ["c", "b,c"], [",c", "dé"], ["é"], ["a"], ["dé!", "zz"]]
    async with serving(Script(replies=replies)) as (_, client):
        for number, (prompt, stop) in enumerate(zip(replies, itertools.cycle(stops), strict=False)):
            asked = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
            body = {"model": "scripted", "stop": stop, "max_tokens": 50, "stream": True, **asked}
            response = await client.post(path, json=body)
            choices = [choice for event in sse(response.text)[:-1] for choice in event["choices"]]
            deltas = [choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices]
            assert "".join(deltas) == before_stop(stop), (ways[number], stop)
            assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


FAULTS = {
    "an error of its own": (say("abcdef", error_at=3), "abc"),
    "an exception in the predictor": (say("abcdef", raise_at=3), "abc"),
    "before the first token": (say("abcdef", error_at=0), ""),
}


@pytest.mark.case("sse-error-02")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_fault_in_a_stream_is_one_error_event_then_done_and_no_success(fault: str, path: str) -> None:
    reply, text = FAULTS[fault]
    asked: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    async with serving(Script(reply=reply)) as (service, client):
        body = {"model": "scripted", "max_tokens": 50, "stream": True, **asked}
        response = await client.post(path, json=body)
        assert response.status_code == 200
        *events, error, end = sse(response.text)
        assert end == "[DONE]"
        assert {"message", "type", "code"} <= set(error["error"])
        assert "error" not in {key for event in events for key in event}
        choices = [choice for event in events for choice in event["choices"]]
        assert "".join(c.get("text", c.get("delta", {}).get("content", "")) for c in choices) == text
        assert not any(choice["finish_reason"] for choice in choices)
        # What can be known before the 200 is told as a status, streamed or not.
        refused = await client.post(path, json={**body, "max_tokens": 0, "n": 0})
        assert refused.status_code == 400
        await service.until_idle()
        metrics = (await client.get("/metrics")).text
    ends = [line for line in metrics.splitlines() if line.startswith("headway_request_success_total{")]
    assert [line.rpartition(" ")[2] for line in ends if 'finished_reason="error"' in line] == ["1.0"]
    assert not any(float(line.rpartition(" ")[2]) for line in ends if 'finished_reason="error"' not in line)
