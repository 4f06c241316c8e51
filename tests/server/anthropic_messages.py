"""Bodies for /v1/messages, conversations, and its errors."""

from typing import Any

import httpx2

URL = "/v1/messages"
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}}
TOOL = {"name": "get_time", "description": "The time in a town", "input_schema": SCHEMA, "strict": True}
TOOLS = ASKED | {"tools": [TOOL, {"name": "x" * 128, "input_schema": {"type": "object"}, "type": "custom"}]}


async def refusal(client: httpx2.AsyncClient, body: Any, status: int = 400, url: str = URL) -> str:
    """An error's type and words, in Anthropic's shape."""
    response = await client.post(url, json=body)
    assert response.status_code == status, response.text
    told = response.json()
    assert set(told) == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(told["error"]) == {"type", "message"}
    return f"{told['error']['type']}: {told['error']['message']}"


def use(call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "get_time", "input": given}


def result(call_id: str, content: Any = "12:00", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content} | more


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words} | more


QUESTION = {"role": "user", "content": "time in Oslo and Lima?"}
CALLS = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Two towns.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look.", citations=None),
        use("toolu_a", zeta="Oslo") | {"caller": {"type": "direct"}},
        use("toolu_b", zeta="Lima", alpha=None),
    ],
}
RESULTS = {
    "role": "user",
    "content": [
        result("toolu_b", [text("no such"), text("town")], is_error=True, cache_control={"type": "ephemeral"}),
        result("toolu_a"),
        text("Well?"),
    ],
}
HISTORY = [QUESTION, CALLS, RESULTS]
