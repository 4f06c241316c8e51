"""Lengths, counts and sizes at their limits, and beyond: refused with the numbers, before anything runs."""

import pytest

from cases.asking import CHAT, COMPLETIONS, HI, answer, ask, by_hand, post_raw, refused, text_of
from e2e.serving import Server
from headway.testing.tiny_model import MAX_POSITION


@pytest.mark.case("maxtok-huge-01")
def test_more_tokens_than_the_context_holds_are_refused_with_both_numbers(server: Server) -> None:
    message = refused(server, path=COMPLETIONS, max_tokens=10000)
    assert "10000" in message
    assert "512" in message


@pytest.mark.case("ctx-overflow-02")
def test_too_long_a_prompt_is_a_400_with_both_numbers_streamed_or_not(server: Server) -> None:
    for stream in (False, True):
        messages = [{"role": "user", "content": "a" * (MAX_POSITION + 100)}]
        response = ask(server, messages=messages, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert str(MAX_POSITION) in error["message"]
        assert str(MAX_POSITION + 100 + 3) in error["message"]  # with the three turn marks
    assert answer(server, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.case("ctx-numctx-05")
def test_a_long_system_message_is_refused_and_never_cut_in_silence(server: Server) -> None:
    messages = [{"role": "system", "content": "s" * 3000}, *HI]
    assert "512" in refused(server, messages=messages)


@pytest.mark.case("ctx-slots-06")
def test_the_context_of_one_does_not_shrink_with_the_number_of_places(server: Server) -> None:
    long = bytes(65 + place % 50 for place in range(490))
    fields = {"max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
    found = answer(server, COMPLETIONS, prompt=list(long), **fields)
    assert found["choices"][0]["token_ids"] == by_hand(long, 20)
    short = answer(server, COMPLETIONS, prompt=[[97 + number] * 150 for number in range(8)], max_tokens=2)
    assert [text_of(choice) for choice in short["choices"]] == ["bc", "cd", "de", "ef", "fg", "gh", "hi", "ij"]


@pytest.mark.case("maxtok-zero-03")
def test_no_tokens_at_all_is_an_echo_with_logprobs_or_a_400(server: Server) -> None:
    found = answer(server, COMPLETIONS, echo=True, logprobs=1, max_tokens=0)
    choice = found["choices"][0]
    assert choice["text"] == "ab"
    assert len(choice["logprobs"]["token_logprobs"]) == found["usage"]["prompt_tokens"] == 2
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert found["usage"]["completion_tokens"] == 0
    refused(server, "max_tokens", max_tokens=0)


@pytest.mark.case("n-range-05")
def test_n_out_of_its_range_is_a_400_at_once(server: Server) -> None:
    for stream in (False, True):
        for n in (0, -1, True, "2", 1.5, 1000000):
            refused(server, "n", n=n, stream=stream)


@pytest.mark.case("dup-key-14")
def test_equal_keys_deep_nesting_and_endless_blanks_are_no_trouble(server: Server) -> None:
    body = '{"model":"%s","model":"%s","messages":[{"role":"user","content":"a"}],"max_tokens":1}'
    assert post_raw(server, body % ("other", "tiny")).json()["model"] == "tiny"
    assert post_raw(server, body % ("tiny", "other")).json()["error"]["code"] == "model_not_found"
    for depth in (5, 500, 2000, 100_000):
        for nested in ("[" * depth, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            assert post_raw(server, nested).status_code == 400
            for path, field in ((CHAT, "messages"), (COMPLETIONS, "prompt"), (CHAT, "chat_template_kwargs")):
                raw = f'{{"model":"tiny","{field}":{nested},"max_tokens":1}}'
                response = post_raw(server, raw, path)
                assert (response.status_code, len(response.content) < 1000) == (400, True), (depth, field)
    assert post_raw(server, " " * 50_000_000).status_code == 413


@pytest.mark.case("ctx-overflow-02", "maxtok-huge-01")
@pytest.mark.parametrize("stream", [False, True])
def test_the_last_place_of_the_context_is_used_and_none_behind_it(server: Server, stream: bool) -> None:
    def prompt(length: int) -> list[int]:
        return [97 + place % 26 for place in range(length)]

    whole = answer(server, COMPLETIONS, prompt=prompt(MAX_POSITION - 1), max_tokens=1)
    assert whole["usage"]["total_tokens"] == MAX_POSITION
    for length, max_tokens in ((MAX_POSITION - 1, 2), (MAX_POSITION, 1), (MAX_POSITION, None), (MAX_POSITION + 1, 1)):
        message = refused(server, path=COMPLETIONS, prompt=prompt(length), max_tokens=max_tokens, stream=stream)
        assert str(length) in message
        assert str(MAX_POSITION) in message
    # A chat without max_tokens has what is left: 512 - 3 marks - 500.
    chat = answer(server, messages=[{"role": "user", "content": "x" * 500}], max_tokens=None, ignore_eos=True)
    assert (chat["usage"]["completion_tokens"], chat["choices"][0]["finish_reason"]) == (9, "length")
