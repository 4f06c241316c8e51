"""Recorded steps: each part within its step, one behind the other, named by what ran; and nothing changed by it."""

from pathlib import Path
from typing import Any

import pytest

import headway_wire as wire
from headway.predictors.headway import HeadwayPredictor
from headway.testing.tiny_model import write_tiny_model


def load(folder: Path, executor: str) -> HeadwayPredictor:
    predictor = HeadwayPredictor()
    options = {"executor": executor, "threads": 2, "kv_cache_memory": 1 << 20, "max_model_len": 64}
    predictor.load(str(write_tiny_model(folder)), options, lambda _: None)
    return predictor


def answer(predictor: HeadwayPredictor) -> tuple[list[int], list[wire.ProfiledStep]]:
    """The tokens of one request, and what was recorded meanwhile."""
    sampling = wire.Sampling(temperature=0.0, max_tokens=6, ignore_eos=True)
    list(predictor.handle(wire.Submit(request_id="r", prompt_token_ids=[5, 6, 7], sampling=sampling)))
    tokens: list[int] = []
    steps: list[wire.ProfiledStep] = []
    while predictor.has_work():
        told = [message for message in predictor.step() if isinstance(message, wire.Step)]
        tokens += [token for message in told for event in message.events for token in event.token_ids]
        steps += predictor.take_profile() or []
    return tokens, steps


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_ops_are_recorded_by_name_and_the_answer_stays(executor: str, tmp_path: Path) -> None:
    predictor = load(tmp_path, executor)
    expected, steps = answer(predictor)
    assert steps == []
    predictor.profile(3)
    tokens, steps = answer(predictor)
    assert tokens == expected
    assert len(steps) == 3
    assert predictor.take_profile() is None
    for step in steps:
        check_nesting(step)
    assert [step.num_sequences for step in steps] == [1, 1, 1]
    assert steps[1].num_tokens == 1
    names = {part for span in steps[0].spans for part in span.name.split("+")}
    assert {"Embed", "Attention", "Norm", "arrays", "collect"} <= names
    assert any("Linear" in name for name in names)
    assert ({"Sample", "Prepare", "WriteKV"} <= names) == (executor == "native")
    assert [span.name for span in steps[1].spans] == [span.name for span in steps[2].spans]
    assert answer(predictor) == (expected, [])


def check_nesting(step: wire.ProfiledStep) -> None:
    """The parts fill their step without a gap."""
    assert step.spans[0].begin_ns == step.begin_ns
    assert step.spans[-1].end_ns == step.end_ns
    for before, after in zip(step.spans, step.spans[1:], strict=False):
        assert before.begin_ns <= before.end_ns == after.begin_ns


def test_an_executor_without_times_gives_whole_steps(make_rig: Any) -> None:
    rig = make_rig()
    rig.engine.profile(2)
    rig.submit("r", [1, 2, 3], max_tokens=3)
    rig.run()
    steps = rig.engine.take_profile()
    assert [[span.name for span in step.spans] for step in steps] == [["execute"], ["execute"]]
    assert [(step.num_sequences, step.num_tokens) for step in steps] == [(1, 3), (1, 1)]
    assert rig.engine.take_profile() is None


def test_what_is_asked_for_can_be_taken_back_and_asked_for_anew(make_rig: Any) -> None:
    rig = make_rig()
    rig.engine.profile(100)
    rig.engine.profile(1)
    rig.engine.profile(0)
    rig.submit("r", [1, 2, 3], max_tokens=3)
    rig.run()
    assert rig.engine.take_profile() is None
    rig.check_idle()
