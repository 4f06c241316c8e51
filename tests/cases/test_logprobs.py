"""Log-probabilities: their shapes on each route, and the raw bytes of their tokens."""

import pytest

from cases.asking import COMPLETIONS, answer, chunks, refused
from e2e.serving import Server


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
