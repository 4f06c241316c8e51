"""What an engine tells of its steps' time, by a clock that a fake executor moves."""

import pytest

from headway.engine.step_time import StepTime, position_cost
from headway.model import make_program
from small_shapes import LLAMA


def test_the_largest_step_tells_what_a_token_takes() -> None:
    step_time = StepTime(max_tokens=2048)
    assert step_time.values() == {"step_token_s": 0.0, "step_position_cost": 0.0, "step_max_tokens": 2048.0}
    step_time.note(8, 0.8)
    step_time.note(1, 0.5)  # a token alone reads all weights for itself
    assert step_time.values()["step_token_s"] == pytest.approx(0.1)
    step_time.note(512, 5.12)
    step_time.note(0, 1.0)
    assert step_time.values()["step_token_s"] == pytest.approx(0.01)
    step_time.note(512, 10.24)  # the same again, later in a long prompt
    assert step_time.values()["step_token_s"] == pytest.approx(0.02)


@pytest.mark.parametrize(("is_chunked", "num_tokens"), [(True, 16), (False, 200 + 4)])
def test_an_engine_tells_its_largest_step_and_what_its_tokens_took(make_rig, is_chunked, num_tokens):
    at_s = [0.0]

    def now() -> float:
        return at_s[0]

    rig = make_rig(now=now, enable_chunked_prefill=is_chunked)
    execute = rig.executor.execute

    def slow(step):
        at_s[0] += 0.25 * len(step.token_ids)
        return execute(step)

    rig.executor.execute = slow
    rig.submit("r", [1, 2, 3, 4], max_tokens=2, ignore_eos=True)
    rig.run()
    stats = rig.engine.stats().values
    assert (stats["step_max_tokens"], stats["step_token_s"]) == (num_tokens, pytest.approx(0.25))


def test_what_a_token_takes_is_told_without_its_attention() -> None:
    """By hand: 100 tokens of 1 ms, each attending to 5,000 positions of 1 us: 0.6 s."""
    step_time = StepTime(max_tokens=100)
    step_time.position_cost = 1e-3
    step_time.note(100, 0.6, mean_context=5000)
    assert step_time.values()["step_token_s"] == pytest.approx(0.001)


def test_an_engine_takes_the_context_out_of_what_its_largest_step_took(make_rig):
    """Chunks of 16 tokens at 0.01 s a token and 0.001 s a position: whatever the chunk, a token is 0.01 s."""
    at_s = [0.0]
    rig = make_rig(now=lambda: at_s[0])
    rig.engine.step_time.position_cost = 0.1
    execute = rig.executor.execute

    def slow(step):
        at_s[0] += float(sum(0.01 + 0.001 * (position + 1) for position in step.positions))
        return execute(step)

    rig.executor.execute = slow
    rig.submit("r", list(range(1, 49)), max_tokens=1, ignore_eos=True)
    told = set()
    while rig.engine.has_work():
        rig.engine.step()
        told.add(round(rig.engine.stats().values["step_token_s"], 9))
    assert told == {0.01}


def test_the_cost_of_a_position_is_that_of_the_program() -> None:
    """By hand: 2 layers of 4 heads of 16; widths 64 and 128, 2 heads for keys and values, 1,000 tokens."""
    attention, norms = 2 * 4 * (16 + 16), 5 * 64
    layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128
    assert position_cost(make_program(LLAMA)) == attention / (2 * layer + 1000 * 64 + norms)
