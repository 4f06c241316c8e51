"""Log-probabilities of prompts leave the engine in chunks, once each, whatever else it does; over the fakes, whose
logits are worked out from the tokens before."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.engine.conftest import VOCAB_SIZE, FakeSampler, Rig, continuation, next_token

import headway_wire as wire
from headway.engine.sampler import Sampled
from headway.executor.base import Float32, Int32

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]


class ScoringSampler(FakeSampler):
    """As the native one where a row's tokens are the prompt's: the "log-probability" is the token's logit."""

    def sample(self, logits: Float32, rows: Int32, num_tokens: Int32) -> Sampled:
        made = super().sample(logits, rows, num_tokens)
        for index, (row, count) in enumerate(zip(rows.tolist(), num_tokens.tolist(), strict=True)):
            if count < self.rows[row]["num_prompt_tokens"]:
                made.token_ids[index] = self.token_ids[row, count]
                made.logprobs[index] = logits[index, made.token_ids[index]]
        return Sampled(made.token_ids, made.is_finite, made.logprobs, made.top_ids, made.top_logprobs)


@pytest.fixture
def make(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rig]:
    monkeypatch.setitem(make_rig.__globals__, "FakeSampler", ScoringSampler)
    return make_rig


def told(rig: Rig, request_id: str) -> list[wire.PromptLogprobs]:
    return [each for each in rig.engine.take_prompt_logprobs() if each.request_id == request_id]


def check_told(messages: list[wire.PromptLogprobs], prompt: list[int]) -> None:
    """Every token but the first, once, in order, each with the logit and the likeliest behind those before it."""
    entries = []
    for message in messages:
        assert message.start == len(entries) + 1
        entries += message.logprobs
    wanted = [float(next_token(prompt[:place]) == prompt[place]) for place in range(1, len(prompt))]
    assert [entry.logprob for entry in entries] == wanted
    assert [entry.top_ids for entry in entries] == [[next_token(prompt[:place])] for place in range(1, len(prompt))]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("num_seqs", [1, 2, 4, 16])
def test_they_come_in_chunks_that_are_never_more_rows_than_sequences_may_run(make, num_seqs, chunked) -> None:
    rig = make(max_num_seqs=num_seqs, enable_chunked_prefill=chunked)
    rig.submit("a", PROMPT, max_tokens=3, prompt_logprobs=1)
    rig.run()
    messages = told(rig, "a")
    check_told(messages, PROMPT)
    assert rig.sampler.most_rows <= num_seqs
    assert max(len(message.logprobs) for message in messages) == min(-(-num_seqs // 2), len(PROMPT) - 1)
    assert rig.output("a")[0] == continuation(PROMPT, 3)
    rig.check_idle()


def test_they_are_whole_before_the_first_token(make) -> None:
    rig = make()
    rig.submit("a", PROMPT, max_tokens=3, prompt_logprobs=0)
    num_told = 0
    while rig.engine.has_work():
        step = rig.step()
        num_told += sum(len(message.logprobs) for message in told(rig, "a"))
        assert num_told == len(PROMPT) - 1 or not any(event.token_ids for event in step.events)


def test_a_cached_prefix_is_not_read_and_is_there_for_others(make) -> None:
    rig = make()
    for request_id, scores in (("warm", None), ("a", 1), ("after", None)):
        rig.submit(request_id, PROMPT, max_tokens=2, prompt_logprobs=scores)
        rig.run()
    check_told(told(rig, "a"), PROMPT)
    assert [rig.events(each)[-1].num_cached_tokens for each in ("warm", "a", "after")] == [0, 0, 12]
    assert rig.output("warm") == rig.output("a") == rig.output("after")
    rig.check_idle()


def test_of_several_choices_the_prompt_is_told_once(make) -> None:
    rig = make(max_num_batched_tokens=32)
    rig.submit("a", PROMPT, max_tokens=2, n=3, prompt_logprobs=1)
    rig.run()
    check_told(told(rig, "a"), PROMPT)
    assert [rig.output("a", choice)[0] for choice in range(3)] == [continuation(PROMPT, 2)] * 3
    assert rig.engine.stats().values["computed_tokens_total"] == len(PROMPT) + 2 * 2 + 3


def test_others_run_beside_it_and_it_beside_them(make) -> None:
    rig = make(max_num_seqs=6, max_num_batched_tokens=12)
    prompts = {name: [token + shift for token in PROMPT[: 14 - shift]] for shift, name in enumerate("abcdefgh")}
    for name, prompt in prompts.items():
        rig.submit(name, prompt, max_tokens=4, prompt_logprobs=1 if name in "bdfg" else None)
    rig.run()
    messages = rig.engine.take_prompt_logprobs()
    assert {message.request_id for message in messages} == set("bdfg")
    for name, prompt in prompts.items():
        if name in "bdfg":
            check_told([message for message in messages if message.request_id == name], prompt)
        assert rig.output(name) == rig.expect(prompt, 4)
    assert rig.sampler.most_rows <= 6
    rig.check_idle()


@pytest.mark.parametrize("cached", [True, False])
def test_a_preempted_one_goes_on_where_it_was(make, cached) -> None:
    rig = make(num_blocks=8, max_num_seqs=4, max_num_batched_tokens=6, enable_prefix_caching=cached)
    names = "abc"
    for number, name in enumerate(names):
        rig.submit(name, [30 + number, *PROMPT], max_tokens=9, prompt_logprobs=1)
    rig.run()
    assert rig.engine.stats().values["preemptions_total"] > 0
    messages = rig.engine.take_prompt_logprobs()
    for number, name in enumerate(names):
        check_told([message for message in messages if message.request_id == name], [30 + number, *PROMPT])
        assert rig.output(name) == rig.expect([30 + number, *PROMPT], 9)
    rig.check_idle()


def test_without_an_output_only_the_prompt_is_computed(make) -> None:
    rig = make()
    rig.submit("a", PROMPT, max_tokens=0, prompt_logprobs=1)
    rig.submit("one", [7], max_tokens=0, prompt_logprobs=1)
    rig.run()
    messages = rig.engine.take_prompt_logprobs()
    check_told([message for message in messages if message.request_id == "a"], PROMPT)
    assert not [message for message in messages if message.request_id == "one"]
    assert rig.output("a") == rig.output("one") == ([], "length")
    assert rig.engine.stats().values["computed_tokens_total"] == len(PROMPT) + 1
    rig.check_idle()


def test_a_row_that_is_not_finite_fails_its_request_alone(make) -> None:
    rig = make()
    rig.executor.is_poisoned = lambda token_ids: token_ids == PROMPT[:5]
    rig.submit("a", PROMPT, max_tokens=3, prompt_logprobs=1)
    rig.submit("b", PROMPT[1:], max_tokens=3, prompt_logprobs=1)
    rig.run()
    assert rig.events("a")[-1].error.kind == "NonFiniteLogits"
    assert rig.output("b") == rig.expect(PROMPT[1:], 3)
    check_told([m for m in rig.engine.take_prompt_logprobs() if m.request_id == "b"], PROMPT[1:])
    rig.check_idle()


def test_no_array_of_prompt_by_vocabulary_is_ever_made(make) -> None:
    """A step has no more rows of logits than sequences may run, and one of the chunk's end."""
    rig = make(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=200)
    prompt = np.random.default_rng(0).integers(1, VOCAB_SIZE, 150).tolist()
    rig.submit("a", prompt, max_tokens=1, prompt_logprobs=2)
    rig.run()
    assert max(len(step.logit_rows) for step in rig.executor.steps) <= 4 + 1
    assert sum(len(message.logprobs) for message in told(rig, "a")) == 149


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"allowed_token_ids": [VOCAB_SIZE]}, "allowed_token_ids"), ({"bad_token_ids": [[3, -1]]}, "bad_words")],
)
def test_ids_of_masks_outside_the_vocabulary_are_refused(make, fields, words) -> None:
    rig = make()
    answer = rig.submit("a", PROMPT, **fields)
    assert isinstance(answer, wire.Refused)
    assert words in answer.error.message
    assert f"0 to {VOCAB_SIZE - 1}" in answer.error.message
