"""What an engine tells of its steps' time, by a clock that a fake executor moves."""

import pytest

from headway.engine.step_time import StepTime


def test_the_largest_step_tells_what_a_token_takes() -> None:
    step_time = StepTime(max_tokens=2048)
    assert step_time.values() == {"step_token_s": 0.0, "step_max_tokens": 2048.0}
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
