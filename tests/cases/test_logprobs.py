"""Log-probabilities: their shapes on each route, and the raw bytes of their tokens."""

from typing import Any

import pytest

from cases.asking import COMPLETIONS, answer, chunks, refused, saying
from e2e.serving import Server
from headway.testing.script import CONTROL_TOKENS


def is_spelled_alone(told: Any) -> bool:
    """A token's text is that of its own bytes; a control token has a name and no bytes."""
    if told["token"] in CONTROL_TOKENS:
        return told["bytes"] == []
    return len(told["bytes"]) == 1 and told["token"] == bytes(told["bytes"]).decode(errors="replace")


@pytest.mark.case("logprobs-missing-top-01")
def test_logprobs_without_a_number_have_no_alternatives(server: Server) -> None:
    content = answer(server, logprobs=True, max_tokens=3)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 3


@pytest.mark.case("logprobs-null-top-03")
def test_a_number_of_null_is_none(server: Server) -> None:
    content = answer(server, logprobs=True, top_logprobs=None, max_tokens=3)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 3


@pytest.mark.case("logprobs-stream-drop-04")
def test_a_stream_has_the_logprobs_of_the_whole_answer(server: Server) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 8}
    whole = answer(server, **fields)["choices"][0]["logprobs"]["content"]
    streamed = [choice for chunk in chunks(server, **fields) for choice in chunk["choices"] if choice.get("logprobs")]
    assert [entry for choice in streamed for entry in choice["logprobs"]["content"]] == whole
    assert len(whole) == 8


@pytest.mark.case("logprobs-completions-type-06")
def test_chats_take_a_boolean_and_completions_a_number(server: Server) -> None:
    logprobs = answer(server, COMPLETIONS, logprobs=3, max_tokens=2)["choices"][0]["logprobs"]
    assert [len(top) for top in logprobs["top_logprobs"]] == [3, 3]
    refused(server, "logprobs", path=COMPLETIONS, logprobs=True)
    refused(server, "logprobs", logprobs=3)


@pytest.mark.case("echo-ignored-04")
def test_an_echo_is_told_with_offsets_from_0(server: Server) -> None:
    choice = answer(server, COMPLETIONS, echo=True, logprobs=0)["choices"][0]
    assert choice["text"] == "abcdef"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]


@pytest.mark.case("utf8-logprobs-02")
@pytest.mark.parametrize("text", ["👋", "“é”"[:2], "世界", "né👋"])
def test_bytes_of_tokens_join_to_the_text_and_alternatives_are_told_alone(server: Server, text: str) -> None:
    fields = {**saying(text), "logprobs": True, "top_logprobs": 3}
    choice = answer(server, **fields)["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == text
    assert [entry["bytes"] for entry in content] == [[byte] for byte in text.encode()]
    for entry in content:
        assert all(is_spelled_alone(told) for told in (entry, *entry["top_logprobs"]))
    streamed = [choice for chunk in chunks(server, **fields) for choice in chunk["choices"]]
    assert [entry for one in streamed for entry in (one["logprobs"] or {"content": []})["content"]] == content
    deltas = [one["delta"].get("content", "") for one in streamed]
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.case("utf8-logprobs-02", "utf8-stream-01")
@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_character_without_its_end_is_told_once_and_its_bytes_are_raw(server: Server, num_bytes: int) -> None:
    fields = {**saying("👋"), "max_tokens": num_bytes, "logprobs": True, "top_logprobs": 0}
    choice = answer(server, **fields)["choices"][0]
    assert choice["message"]["content"] == "\ufffd"
    told = [byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"]]
    assert told == list("👋".encode()[:num_bytes])
    streamed = [one["delta"].get("content", "") for chunk in chunks(server, **fields) for one in chunk["choices"]]
    assert "".join(streamed) == "\ufffd"


@pytest.mark.case("logprobs-bpe-alias-03")
def test_no_letter_of_the_byte_alphabet_is_told(server: Server) -> None:
    """Its letters for space, line feed, tabulator and 0x7F are Ġ, Ċ, ĉ and ġ."""
    text = " \n\t\x7f世"
    content = answer(server, **saying(text), logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == [*" \n\t\x7f", *["\ufffd"] * 3]
    for entry in content:
        assert all(is_spelled_alone(told) for told in (entry, *entry["top_logprobs"]))
    choice = answer(server, COMPLETIONS, **saying(text), logprobs=5)["choices"][0]
    assert choice["text"] == text
    assert choice["logprobs"]["tokens"] == [entry["token"] for entry in content]
    known = {chr(code) for code in range(128)} | {"\ufffd"} | set(CONTROL_TOKENS)
    assert {token for top in choice["logprobs"]["top_logprobs"] for token in top} <= known
    body = {"model": "tiny", "prompt": text, "return_token_strs": True}
    assert server.post("/tokenize", body).json()["token_strs"] == choice["logprobs"]["tokens"]
