"""Requests to a server of the tiny model, and what its answers say."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2

from e2e.serving import VERIFY, Server
from headway.testing.tiny_model import logits_by_hand

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EXTRA_END = ord("#")
"""An end token that generation_config.json alone knows."""
HI = [{"role": "user", "content": "hi"}]


def by_hand(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy continuation that no end token ends."""
    context = list(prompt)
    for _ in range(num_tokens):
        logits = logits_by_hand(context)
        context.append(logits.index(max(logits)))
    return context[len(prompt) :]


def ask(server: Server, path: str = CHAT, **fields: Any) -> httpx2.Response:
    start: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    start |= {"messages": HI} if path == CHAT else {"prompt": "ab"}
    return server.post(path, {**start, **fields})


def answer(server: Server, path: str = CHAT, **fields: Any) -> Any:
    response = ask(server, path, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Server, param: str | None = None, path: str = CHAT, **fields: Any) -> str:
    """The message of a 400 that names the field; the body has OpenAI's shape, whether a stream was asked for or not."""
    response = ask(server, path, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(response.content) < 3000
    if param is not None:
        assert error["param"] == param, error
    return str(error["message"])


def post_raw(server: Server, raw: str | bytes, path: str = CHAT, **headers: str) -> httpx2.Response:
    """A body that no JSON encoder would write."""
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(server.url + path, content=raw, headers=sent, timeout=60, verify=VERIFY)


def chunks(server: Server, path: str = CHAT, **fields: Any) -> list[Any]:
    """A stream's chunks; it ends with [DONE], once."""
    response = ask(server, path, stream=True, **fields)
    assert response.status_code == 200, response.text
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_of(choice: Any) -> str:
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def saying(text: str) -> dict[str, Any]:
    """Fields of a request that make the tiny model say the bytes of a text, each of which comes once.

    Biases order them, over all of the model's own logits, which are at most 8; the penalties put what was said behind.
    """
    said = text.encode()
    assert len(set(said)) == len(said)
    biases = {str(byte): 60 - 0.2 * place for place, byte in enumerate(said)}
    return {"logit_bias": biases, "presence_penalty": 2, "frequency_penalty": 2, "max_tokens": len(said)}
