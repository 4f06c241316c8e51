"""How much of a prompt joins a step with streams: worked by hand."""

import pytest

from headway.scheduler.pace import MIN_TOKENS, Pace


def test_without_a_target_a_step_takes_what_its_limit_allows():
    pace = Pace(0.0)
    pace.note(8, 100, 10.0)
    assert pace.max_tokens(8, 2048) == 2048


def test_without_streams_nobody_waits_for_a_token():
    pace = Pace(0.1)
    pace.note(0, 100, 10.0)
    assert pace.max_tokens(0, 2048) == 2048


def test_what_streams_leave_of_the_target_is_filled_at_the_measured_cost():
    pace = Pace(0.1)
    pace.note(8, 0, 0.020)  # 2.5 ms a stream
    pace.note(8, 100, 0.070)  # 0.5 ms a token beside them
    assert pace.max_tokens(8, 2048) == 160  # (100 - 20) / 0.5
    assert pace.max_tokens(16, 2048) == 120  # (100 - 40) / 0.5
    assert pace.max_tokens(8, 30) == 30


def test_a_prompt_alone_tells_what_a_token_costs():
    pace = Pace(0.1)
    pace.note(0, 2000, 2.0)
    assert pace.max_tokens(1, 2048) == 100


def test_a_dearer_token_is_believed_at_once_and_a_cheaper_one_slowly():
    pace = Pace(0.1)
    pace.note(0, 100, 0.1)
    pace.note(0, 100, 0.2)
    assert pace.max_tokens(1, 2048) == 50
    pace.note(0, 100, 0.1)
    assert pace.max_tokens(1, 2048) == 58  # 2 ms - 0.3 * 1 ms = 1.7 ms a token


def test_streams_that_take_the_whole_target_leave_a_share_to_prompts():
    pace = Pace(0.1)
    pace.note(64, 0, 0.2)
    pace.note(0, 100, 0.1)
    assert pace.max_tokens(64, 2048) == 100  # half of 200 ms


def test_a_prompt_gets_somewhere_however_slow_the_machine():
    pace = Pace(0.1)
    pace.note(0, 10, 10.0)
    assert pace.max_tokens(1, 2048) == MIN_TOKENS
    assert pace.max_tokens(1, 3) == 3


@pytest.mark.parametrize(
    ("target_s", "expected"), [(0.1, {"stream": 1, "prompt": 30}), (0.0, {"stream": 1, "prompt": 500})]
)
def test_a_prompt_beside_a_stream_is_cut_to_the_pace(make_line, target_s, expected):
    pace = Pace(target_s)
    line = make_line(num_blocks=256, block_size=16, max_num_batched_tokens=2048, pace=pace)
    line.add("stream", 10, 20)
    line.step()
    pace.note(0, 30, 0.1)
    line.add("prompt", 500, 1)
    assert line.step() == expected


def test_a_plan_tells_how_many_of_its_sequences_are_streams(make_line):
    line = make_line(num_blocks=256, block_size=16, max_num_batched_tokens=2048, pace=Pace(0.0))
    line.add("stream", 10, 20)
    line.step()
    line.add("prompt", 500, 1)
    assert line.scheduler.schedule().num_streams == 1
