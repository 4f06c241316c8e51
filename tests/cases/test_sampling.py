"""Seeds, penalties, biases, and where choices stand."""

from typing import Any

import pytest

from cases.asking import COMPLETIONS, EXTRA_END, HI, answer, by_hand, chunks, refused, text_of
from e2e.serving import Server
from headway.testing.script import END_TOKEN_ID
from headway.testing.tiny_model import VOCAB_SIZE, logits_by_hand


@pytest.mark.case("logitbias-range-03")
def test_a_bias_of_100_bans_or_forces(server: Server) -> None:
    banned = answer(server, COMPLETIONS, logit_bias={"99": -100}, max_tokens=1)
    assert text_of(banned["choices"][0]) == "a"  # the likeliest of what is left, the lower id of two
    forced = answer(server, COMPLETIONS, logit_bias={"120": 100}, max_tokens=2)
    assert text_of(forced["choices"][0]) == "xx"
    refused(server, "logit_bias", path=COMPLETIONS, logit_bias={"99": 101})


@pytest.mark.case("seed-n-06")
def test_choices_of_one_seed_differ_and_come_again(server: Server) -> None:
    fields = {"n": 4, "seed": 7, "temperature": 2.0, "max_tokens": 6, "return_token_ids": True}
    first, again = (answer(server, COMPLETIONS, **fields)["choices"] for _ in range(2))
    assert [choice["token_ids"] for choice in first] == [choice["token_ids"] for choice in again]
    assert len({tuple(choice["token_ids"]) for choice in first}) == 4


@pytest.mark.case("mintok-stop-02")
def test_ignored_ends_count_and_min_tokens_is_at_most_max_tokens(server: Server) -> None:
    found = answer(server, COMPLETIONS, min_tokens=8, max_tokens=8, ignore_eos=True, logit_bias={str(EXTRA_END): 100})
    assert (found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]) == (8, "length")
    refused(server, path=COMPLETIONS, min_tokens=9, max_tokens=8)


@pytest.mark.case("reppen-04")
def test_penalties_take_every_id_of_the_vocabulary(server: Server) -> None:
    last = VOCAB_SIZE - 1
    found = answer(server, COMPLETIONS, prompt=[97, last], max_tokens=1, repetition_penalty=1.2)
    logits = logits_by_hand([97, last])
    for token_id in (97, last):  # what vLLM's formula makes of them
        logits[token_id] = logits[token_id] / 1.2 if logits[token_id] > 0 else logits[token_id] * 1.2
    assert text_of(found["choices"][0]).encode() == bytes([logits.index(max(logits))])


@pytest.mark.case("n-index-03")
def test_each_choice_has_its_index_and_its_own_text(server: Server) -> None:
    fields = {"n": 3, "seed": 2, "temperature": 3.0, "max_tokens": 12, "stop": ["a", "e", "\x01"]}
    whole = answer(server, COMPLETIONS, **fields)["choices"]
    assert [choice["index"] for choice in whole] == [0, 1, 2]
    streamed = [choice for chunk in chunks(server, COMPLETIONS, **fields) for choice in chunk["choices"]]
    for choice in whole:
        assert "".join(one["text"] for one in streamed if one["index"] == choice["index"]) == choice["text"]


@pytest.mark.case("comp-batch-01")
def test_choice_i_of_prompt_p_has_the_index_p_n_plus_i(server: Server) -> None:
    fields: dict[str, Any] = {"prompt": ["1 1 a", "2 2 m", "3 3 t"], "n": 2}
    whole = answer(server, COMPLETIONS, **fields)
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(
        enumerate(["bcde", "bcde", "nopq", "nopq", "uvwx", "uvwx"])
    )
    assert whole["usage"]["prompt_tokens"] == 15
    streamed = [choice for chunk in chunks(server, COMPLETIONS, **fields) for choice in chunk["choices"]]
    for index, expected in enumerate(["bcde", "bcde", "nopq", "nopq", "uvwx", "uvwx"]):
        assert "".join(choice["text"] for choice in streamed if choice["index"] == index) == expected


@pytest.mark.case("ignoreeos-parser-03")
@pytest.mark.parametrize("stream", [False, True])
def test_ignored_ends_leave_no_trace_in_the_text(server: Server, stream: bool) -> None:
    """After z comes <|end|>, and after that a: ignored, it counts, and the text goes on."""
    fields: dict[str, Any] = {"ignore_eos": True, "max_tokens": None, "max_completion_tokens": 64}
    prompt = server.post("/tokenize", {"model": "tiny", "messages": HI}).json()["tokens"]
    said = by_hand(prompt, 64)
    assert END_TOKEN_ID in said
    if stream:
        told = chunks(server, stream_options={"include_usage": True}, **fields)
        text = "".join(choice["delta"].get("content", "") for chunk in told for choice in chunk["choices"])
        usage = told[-1]["usage"]
    else:
        whole = answer(server, **fields)
        text, usage = text_of(whole["choices"][0]), whole["usage"]
    assert usage["completion_tokens"] == 64
    assert text.encode() == bytes(token for token in said if token < 256)
