"""/v1/messages: what is refused, in which words and shape."""

from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from tests.server.anthropic_messages import ASKED, CALLS, HISTORY, QUESTION, TOOL, URL, refusal, result, text, use
from tests.server.conftest import FakeService, client_of

from headway.config import ServerConfig
from headway.errors import (
    ContextLengthExceeded,
    HeadwayError,
    InvalidRequest,
    ModelNotReady,
    NonFiniteLogits,
    QueueFull,
    WorkerDied,
)
from headway.server.app import make_app

WITHOUT = {name: value for name, value in ASKED.items() if name != "max_tokens"}


def asking(*messages: Any, **fields: Any) -> dict[str, Any]:
    return ASKED | {"messages": list(messages)} | fields


def said(role: str, *content: Any) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (WITHOUT, "max_tokens is missing"),
        (ASKED | {"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        (ASKED | {"max_tokens": True}, "max_tokens is true; it must be an integer"),
        (ASKED | {"messages": []}, "messages is an empty list"),
        (ASKED | {"foo": 1}, "foo is no field"),
        (ASKED | {"container": "x"}, "container is not supported"),
        (ASKED | {"mcp_servers": [{}]}, "mcp_servers is not supported"),
        (ASKED | {"stop_sequences": ["x"] * 17}, "stop_sequences has 17 strings, at most 16"),
        (ASKED | {"stop_sequences": "x"}, "stop_sequences is a string; it must be a list"),
        (ASKED | {"temperature": -1}, "temperature is -1.0; it must be at least 0.0"),
        (ASKED | {"metadata": {"user_id": "x" * 257}}, "metadata.user_id has 257 characters; it must have at most 256"),
        (ASKED | {"metadata": {"name": "x"}}, "metadata.name is no field"),
        (ASKED | {"thinking": {"type": "between_tools"}}, "thinking.type"),
        (ASKED | {"thinking": {"type": "enabled"}}, "thinking.budget_tokens is missing"),
        (ASKED | {"thinking": {"type": "adaptive", "budget_tokens": 5}}, "only for thinking of type enabled"),
        (
            ASKED | {"thinking": {"type": "enabled", "budget_tokens": 50}},
            "thinking.budget_tokens is 50; it must be at least 1 and below max_tokens, which is 50",
        ),
        (ASKED | {"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
        (ASKED | {"context_management": {"edits": [{"type": "clear_tool_uses_1"}]}}, "context_management.edits[0]"),
        (asking(said("user", {"type": "image", "source": {}})), "messages[0].content[0].type is image"),
        (asking(said("user", text("a"), {"type": "document"})), "messages[0].content[1].type is document"),
        (asking(said("user", use("a"))), "messages[0].content[0].type is 'tool_use'; blocks of a message of the role"),
        (asking(said("user", {"type": "text"})), "messages[0].content[0].text is null; it must be a string"),
        (asking(said("user", text("a", foo=1))), "messages[0].content[0].foo is no field of a text block"),
        (asking(said("user", "a")), "messages[0].content[0] is a string; it must be an object with a type"),
        (asking(said("user")), "messages[0].content is an empty list"),
        (asking({"role": "user", "content": 7}), "messages[0].content is 7"),
        (asking({"role": "user"}), "messages[0].content is missing"),
        (asking({"role": "tool", "content": "x"}), "messages[0].role must be user or assistant"),
        (asking({"role": "assistant", "content": ""}), "messages has only an empty message"),
        (asking(QUESTION, said("assistant", CALLS["content"][0])), "messages ends with thinking"),  # type: ignore[index]
        (ASKED | {"system": [{"type": "image"}]}, "system[0].type is image"),
        (ASKED | {"system": 7}, "system is 7; it must be text or a list"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_place(client: httpx2.AsyncClient, body: Any, words: str) -> None:
    told = await refusal(client, body)
    assert told.startswith(f"invalid_request_error: {words}") or words in told


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([QUESTION, CALLS], ["messages[1]", "toolu_a", "toolu_b", "next message"]),
        ([QUESTION, CALLS, said("user", result("toolu_a"))], ["messages[1]", "'toolu_b'"]),
        ([QUESTION, CALLS, QUESTION], ["messages[1]", "toolu_a"]),
        ([QUESTION, CALLS, said("system", text("x"))], ["messages[1]", "toolu_a"]),
        (
            [*HISTORY, said("assistant", text("x")), said("user", result("toolu_a"))],
            ["messages[4].content[0]", "toolu_a"],
        ),
        ([said("user", result("x"))], ["messages[0].content[0].tool_use_id", "'x'", "just before"]),
        (
            [QUESTION, CALLS, said("user", result("toolu_a"), result("toolu_b"), result("toolu_a"))],
            ["messages[2].content[2].tool_use_id", "toolu_a", "another"],
        ),
        (
            [QUESTION, CALLS, said("user", text("x"), result("toolu_a"), result("toolu_b"))],
            ["messages[2].content[1]", "results come first"],
        ),
        ([QUESTION, said("assistant", use("a"), use("a"))], ["messages[1].content[1].id", "'a'"]),
        ([QUESTION, said("assistant", use("a") | {"input": "{}"})], ["messages[1].content[0].input is a string"]),
        (
            [QUESTION, CALLS, said("user", result("toolu_a", [{"type": "image"}]))],
            ["messages[2].content[0].content[0].type is image"],
        ),
        ([QUESTION, CALLS, said("user", result("toolu_a", is_error=1))], ["messages[2].content[0].is_error is 1"]),
    ],
)
async def test_results_that_do_not_pair_are_refused_by_place_and_id(
    client: httpx2.AsyncClient, messages: list[Any], words: list[str]
) -> None:
    for url, body in ((URL, asking(*messages)), (f"{URL}/count_tokens", {"model": "m", "messages": messages})):
        told = await refusal(client, body, url=url)
        assert all(word in told for word in words), told


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type is 'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
        ({"tools": [TOOL | {"name": "no spaces"}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [TOOL | {"name": "x" * 129}]}, "tools[0].name must be 1 to 128 letters"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name is 'get_time', as an earlier tool's"),
        ({"tools": [TOOL | {"input_schema": 7}]}, "tools[0].input_schema is 7"),
        ({"tools": [TOOL | {"input_schema": {"type": "string"}}]}, 'tools[0].input_schema.type must be "object"'),
        ({"tools": [TOOL | {"foo": 1}]}, "tools[0].foo is no field of a tool"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading is not supported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is only for requests with tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
            "tool_choice names 'other', and tools has",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "any", "name": "get_time"}},
            "tool_choice.name is only for type tool",
        ),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice is a string; it must be an object"),
    ],
)
async def test_tools_that_cannot_be_used_are_refused_by_their_place(
    client: httpx2.AsyncClient, fields: Any, words: str
) -> None:
    assert (await refusal(client, ASKED | fields)).startswith(f"invalid_request_error: {words}")


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (InvalidRequest("stop has a fault", param="stop"), 400, "invalid_request_error: stop_sequences has a fault"),
        (
            ContextLengthExceeded("the prompt has 9 tokens, at most 8", param="prompt"),
            400,
            "invalid_request_error: prompt is too long: the prompt has 9 tokens, at most 8",
        ),
        (QueueFull("8 wait", retry_after_s=3.0), 529, "overloaded_error: 8 wait"),
        (ModelNotReady("it loads"), 503, "api_error: it loads"),
        (WorkerDied("Traceback secret"), 503, "api_error: the model's process ended"),
        (NonFiniteLogits("NaN"), 500, "api_error: NaN"),
        (RuntimeError("secret"), 500, "api_error: an internal error"),
    ],
)
async def test_errors_of_the_house_have_anthropics_status_and_type(
    app: FastAPI, service: FakeService, error: HeadwayError | RuntimeError, status: int, told: str
) -> None:
    service.refusal = error
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for body in (ASKED, ASKED | {"stream": True}):
            assert (await refusal(client, body, status)).startswith(told)
        if status in (503, 529):
            response = await client.post(URL, json=ASKED)
            assert response.headers["retry-after"] == ("3" if status == 529 else "1")


@pytest.mark.case("err-shape-07")
async def test_errors_before_the_route_have_anthropics_shape(service: FakeService) -> None:
    app = make_app(service, ServerConfig(api_keys=("key",), max_body_bytes=1000))
    async with client_of(app) as client:
        assert (await refusal(client, ASKED, 401)).startswith("authentication_error: no valid API key")
        client.headers["x-api-key"] = "key"
        assert (await client.post(URL, json=ASKED)).status_code == 200
        assert (await refusal(client, ASKED | {"model": "none"}, 404)).startswith("not_found_error: ")
        assert (await refusal(client, ASKED | {"system": "x" * 1000}, 413)).startswith("request_too_large: ")
        assert (await refusal(client, {}, 404, f"{URL}/batches")).startswith("not_found_error: there is no such route")
        response = await client.get(URL)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error"]["type"] == "invalid_request_error"
        response = await client.post(URL, content=b"{")
        assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "no valid JSON" in response.json()["error"]["message"]
    async with client_of(make_app(service, ServerConfig(allowed_hosts=("localhost",)))) as client:
        assert (await refusal(client, ASKED, 403)).startswith("permission_error: ")


async def test_what_is_beside_anthropics_path_keeps_openais_shape(client: httpx2.AsyncClient) -> None:
    for path in ("/v1/messagesx", "/v1/message", "/messages"):
        response = await client.post(path, json=ASKED)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert "request-id" not in response.headers


async def test_models_are_refused_in_the_form_of_who_asks(client: httpx2.AsyncClient) -> None:
    url = "/v1/models/none"
    told = await client.get(url, headers={"Anthropic-Version": "2023-06-01"})
    assert told.status_code == 404
    assert told.json()["error"]["type"] == "not_found_error"
    assert told.json()["request_id"] == told.headers["request-id"]
    others = await client.get(url)
    assert others.status_code == 404
    assert set(others.json()["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in others.headers
