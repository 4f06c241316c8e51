"""A loaded model gives the same tokens whatever the batching, the policy and the caches."""

from typing import Any

import pytest

import headway_wire as wire
from headway.predictors.base import TimedPredictor
from headway.predictors.headway import HeadwayPredictor

MODES: dict[str, dict[str, Any]] = {
    "dynamic": {"batching": "dynamic", "max_queue_delay_ms": 0.0},
    "static": {"batching": "static", "max_queue_delay_ms": 0.0},
    "no KV cache": {"enable_kv_cache": False},
    "whole prompts": {"enable_chunked_prefill": False},
    "static, whole prompts": {"batching": "static", "max_queue_delay_ms": 0.0, "enable_chunked_prefill": False},
    "sjf": {"scheduling_policy": "sjf"},
    "fair": {"scheduling_policy": "fair"},
}
DTYPES = {"native": "auto", "torch": "float32"}
PROMPTS = [[7 + 3 * number + index % (4 + number) for index in range(5 + 4 * number)] for number in range(6)]


def answers(predictor: HeadwayPredictor) -> dict[str, list[tuple[Any, ...]]]:
    """Tokens, log-probabilities and ends of six requests, the half of them sampled, that come in two waves."""
    told: dict[str, list[tuple[Any, ...]]] = {}

    def step() -> None:
        (made,) = predictor.step()
        predictor._engine.check()
        for event in made.events:
            logprobs = [] if event.logprobs is None else [(each.logprob, *each.top_ids) for each in event.logprobs]
            told.setdefault(event.request_id, []).append((*event.token_ids, *logprobs, event.finish_reason))

    for number, prompt in enumerate(PROMPTS):
        sampling = wire.Sampling(
            temperature=0.8 * (number % 2), seed=number, max_tokens=4 + 3 * number, logprobs=2, ignore_eos=True
        )
        submit = wire.Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, tenant=str(number % 2))
        predictor.handle(submit)
        if number == 2:
            step()
            step()
    while predictor.has_work():
        step()
    return told


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_each_mode_gives_what_continuous_batching_gives(small_model, options, executor):
    def load(**changed: Any) -> HeadwayPredictor:
        predictor = HeadwayPredictor()
        predictor.load(
            str(small_model.path),
            options(executor=executor, dtype=DTYPES[executor], block_size=16, **changed),
            lambda _: None,
        )
        return predictor

    right = answers(load())
    tokens = {name: [event[0] for event in events] for name, events in right.items()}
    if executor == "torch":  # in float32 as the oracle is
        for number in (0, 2, 4):
            assert tokens[str(number)] == small_model.continuation(PROMPTS[number], 4 + 3 * number, ignore_eos=True)
    for name, mode in MODES.items():
        mine = answers(load(**mode))
        assert {key: [event[0] for event in events] for key, events in mine.items()} == tokens, name
        if executor == "native":
            assert mine == right, name  # bit for bit


def test_a_predictor_says_how_long_its_batch_waits(small_model, options):
    predictor = HeadwayPredictor()
    assert isinstance(predictor, TimedPredictor)
    assert predictor.wait_s() is None
    predictor.load(str(small_model.path), options(batching="static", max_queue_delay_ms=3.6e6), lambda _: None)
    predictor.handle(wire.Submit(request_id="r", prompt_token_ids=[5, 6], sampling=wire.Sampling(max_tokens=2)))
    assert not predictor.has_work()
    assert 3500 < predictor.wait_s() <= 3600
    predictor.close_queue()
    assert predictor.has_work()


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_the_choices_of_a_request_compute_its_prompt_once(small_model, options, executor):
    predictor = HeadwayPredictor()
    predictor.load(
        str(small_model.path),
        options(executor=executor, dtype=DTYPES[executor], block_size=16, max_num_batched_tokens=64),
        lambda _: None,
    )
    sampling = wire.Sampling(n=3, max_tokens=4, temperature=1.0, seed=5, ignore_eos=True)
    predictor.handle(wire.Submit(request_id="r", prompt_token_ids=list(range(3, 36)), sampling=sampling))
    while predictor.has_work():
        predictor.step()
    # 33 prompt tokens once; of the two others the one that is in no whole block of 16; 3 of 4 output tokens of each.
    assert predictor.stats().values["computed_tokens_total"] == 33 + 2 * 1 + 3 * 3
