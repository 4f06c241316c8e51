"""Streams: chunks in OpenAI's order, whole characters, nothing after a stop, one end."""

import httpx2
import pytest

from cases.asking import CHAT, COMPLETIONS, HI, answer, chunks, text_of
from e2e.serving import Server


@pytest.mark.case("usage-stream-n-02")
def test_usage_is_the_sum_of_the_choices_and_a_prompt_counts_once(server: Server) -> None:
    fields = {"n": 3, "seed": 1, "temperature": 1, "stream_options": {"include_usage": True}, "max_tokens": 8}
    found = chunks(server, **fields)
    choices = [choice for chunk in found for choice in chunk["choices"]]
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"]) == [0, 1, 2]
    whole = answer(server, **{key: value for key, value in fields.items() if key != "stream_options"})
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert found[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == 2 + 3


@pytest.mark.case("sse-wire-05")
def test_role_then_content_then_end_then_usage(server: Server) -> None:
    found = chunks(server, stream_options={"include_usage": True})
    assert [chunk["choices"] == [] for chunk in found] == [False] * (len(found) - 1) + [True]
    deltas = [chunk["choices"][0] for chunk in found[:-1]]
    assert [choice["delta"].get("role") for choice in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert [choice["finish_reason"] for choice in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert deltas[-1]["delta"] == {}
    assert found[-1]["usage"]["completion_tokens"] == 4
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1


@pytest.mark.case("sse-done-01")
def test_a_stream_ends_with_done_once_and_the_connection_stays(server: Server) -> None:
    with httpx2.Client(base_url=server.url) as client:
        for num_tokens in (1, 50):
            body = {"model": "tiny", "messages": HI, "max_tokens": num_tokens, "stream": True}
            text = client.post(CHAT, json=body).text
            assert text.endswith("data: [DONE]\n\n")
            assert text.count("[DONE]") == 1


@pytest.mark.case("utf8-stream-01")
def test_half_a_character_is_told_once_at_the_end(server: Server) -> None:
    """A character that stays without its end: held back, then said once as U+FFFD."""
    fields = {"prompt": "x", "allowed_token_ids": list("👋".encode())[:1], "max_tokens": 1}
    streamed = [choice["text"] for chunk in chunks(server, COMPLETIONS, **fields) for choice in chunk["choices"]]
    assert "".join(streamed) == text_of(answer(server, COMPLETIONS, **fields)["choices"][0]) == "\ufffd"
