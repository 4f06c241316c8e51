"""Headway in front of Headway: a model of one server, served by another one through OpenAI's API."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.conftest import client_of, listening, serving, sse, until

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.app import make_app
from headway.service.local import LocalService
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService
from headway.testing.scripted_upstream import Answer, ScriptedUpstream

CHAT = {"model": "far", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
SCRIPT = Script(
    reply=say("Grüße 👋"),
    replies={
        "call": say(CALL),
        "think": say("<think>hm</think>yes"),
        "endless": say("abcd", is_endless=True, delay_s=0.001),
        "breaks": Reply(tokens=[b"a", b"b"], error_at=1),
    },
)


@dataclass
class Gateway:
    """Both of them, and a client of the front one."""

    behind: ScriptedService
    front: LocalService
    client: httpx2.AsyncClient

    async def post(self, **fields: Any) -> httpx2.Response:
        return await self.client.post("/v1/chat/completions", json=CHAT | fields)


def front_of(url: str, tmp_path: Path, **options: Any) -> LocalService:
    model = ModelConfig(source=url, served_names=("far",), framework="openai", options=options)
    return LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path))


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setenv("BEHIND_KEY", "sesame")
    behind = ScriptedService(SCRIPT)
    async with serving(behind, "sesame") as server:
        front = front_of(f"{server.url}/v1", tmp_path, dialect="vllm", api_key_env="BEHIND_KEY")
        async with client_of(make_app(front)) as client:
            yield Gateway(behind, front, client)
            await until(lambda: not front.stats()["pool"]["pool"]["leases"])
        await front.aclose()


def asking(word: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": word}]}


async def test_an_answer_whole_and_streamed_under_the_name_that_was_asked_for(gateway: Gateway) -> None:
    body = (await gateway.post()).json()
    assert body["model"] == "far"
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Grüße 👋", "stop")
    assert body["usage"]["completion_tokens"] == 13
    chunks = sse((await gateway.post(stream=True, stream_options={"include_usage": True})).text)
    text = "".join(each["delta"].get("content") or "" for chunk in chunks[:-1] for each in chunk["choices"])
    assert (text, chunks[-1], chunks[-2]["usage"]) == ("Grüße 👋", "[DONE]", body["usage"])


async def test_tools_and_choices_pass_through(gateway: Gateway) -> None:
    body = (await gateway.post(**asking("call"), tools=[TOOL], n=2)).json()
    for choice in body["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
        assert choice["finish_reason"] == "tool_calls"


async def test_log_probabilities_pass_through(gateway: Gateway) -> None:
    direct = gateway.behind
    assert direct.is_ready()[0]
    body = (await gateway.post(logprobs=True, top_logprobs=1)).json()
    told = body["choices"][0]["logprobs"]["content"]
    assert bytes(number for entry in told for number in entry["bytes"]).decode() == "Grüße 👋"


async def test_a_client_who_leaves_is_seen_by_the_server_behind(gateway: Gateway) -> None:
    async with listening(make_app(gateway.front, ServerConfig(port=0))) as server:
        async with httpx2.AsyncClient(base_url=server.url) as client:
            body = CHAT | asking("endless") | {"stream": True, "max_tokens": 4000}
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                await anext(response.aiter_bytes())
        await until(lambda: gateway.behind.predictor().aborts)
        await gateway.behind.until_idle()


async def test_refusals_of_the_server_behind_are_the_callers(gateway: Gateway) -> None:
    response = await gateway.post(max_tokens=100_000)
    assert response.status_code == 400
    assert "4096" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_a_stream_that_breaks_behind_ends_with_an_error_event(gateway: Gateway) -> None:
    chunks = sse((await gateway.post(**asking("breaks"), stream=True)).text)
    (error,) = (chunk["error"] for chunk in chunks if "error" in chunk)
    assert "the server of model far" in error["message"]
    assert error["type"] == "upstream_error"


async def test_a_raw_prompt_and_another_api(gateway: Gateway) -> None:
    raw = await gateway.client.post("/v1/completions", json={"model": "far", "prompt": "x", "max_tokens": 50})
    assert raw.json()["choices"][0]["text"] == "Grüße 👋"
    message = {"model": "far", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    theirs = await gateway.client.post("/v1/messages", json=message)
    assert theirs.json()["content"][0]["text"] == "Grüße 👋"


async def test_what_needs_its_tokens_says_that_they_are_elsewhere(gateway: Gateway) -> None:
    response = await gateway.client.post("/tokenize", json={"model": "far", "prompt": "x"})
    assert response.status_code == 400
    assert "another server" in response.json()["error"]["message"]


async def test_metrics_and_models_tell_of_it(gateway: Gateway) -> None:
    await gateway.post()
    metrics = (await gateway.client.get("/metrics")).text
    assert 'headway_upstream_state{model_name="far"} 0.0' in metrics
    assert 'headway_upstream_requests_total{model_name="far"} 2.0' in metrics
    assert 'headway_time_to_first_token_seconds_count{model_name="far"} 1.0' in metrics
    assert 'headway_generation_tokens_total{model_name="far"} 13.0' in metrics
    (card,) = (await gateway.client.get("/admin/models")).json()["models"]
    assert (card["id"], card["state"], card["max_model_len"]) == ("far", "ready", 4096)
    assert card["upstream"] == {"breaker": "closed"}


@pytest.mark.parametrize(
    ("answer", "status", "retry_after"),
    [
        (Answer.of_json({"error": "no"}, 401), 502, None),
        (Answer.of_json({"error": "busy"}, 429, retry_after="7"), 429, "7"),
        (Answer([b"overloaded"], 503, {"retry-after": "3"}, "text/plain"), 503, "3"),
        (Answer(is_reset=True), 502, None),
        (Answer.of_json({"error": "slow"}, 504), 504, None),
    ],
)
async def test_each_failure_has_its_status(
    tmp_path: Path, answer: Answer, status: int, retry_after: str | None
) -> None:
    async with ScriptedUpstream() as upstream:
        upstream.add_models("theirs")
        upstream.add("/v1/chat/completions", answer)
        front = front_of(f"{upstream.url}/v1", tmp_path)
        async with client_of(make_app(front)) as client:
            for path in ("/v1/chat/completions", "/v1/messages"):
                response = await client.post(path, json=CHAT)
                assert response.status_code == status
                assert response.headers.get("retry-after") == retry_after
                assert "the server of model far" in response.json()["error"]["message"]
        await front.aclose()
