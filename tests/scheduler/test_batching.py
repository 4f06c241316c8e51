"""The ferry: whether who waits may join those that run."""

import pytest

from headway.core.sequence import SequenceStatus
from headway.errors import InvalidConfig
from headway.scheduler.batching import make_batching
from headway.scheduler.policy import make_policy

FIVE_MINUTES = 300.0


@pytest.fixture(params=["dynamic", "static"])
def ferry(request, make_line):
    """Ten on board, on the clock every five minutes."""
    return make_line(
        batching=request.param, max_num_seqs=10, max_num_batched_tokens=64, num_blocks=200, max_delay_s=FIVE_MINUTES
    )


def test_ten_arrive_in_two_minutes_and_it_leaves_early(ferry):
    for number in range(9):
        ferry.add(f"{number}", 2, 3)
        ferry.clock.advance(12.0)
        assert not ferry.scheduler.has_work()
    assert ferry.scheduler.wait_s() == FIVE_MINUTES - 9 * 12
    ferry.add("9", 2, 3)
    assert ferry.clock.now() == 1000.0 + 108.0
    assert ferry.step() == {f"{number}": 2 for number in range(10)}


def test_eight_come_by_five_minutes_and_it_leaves_with_eight(ferry):
    for number in range(8):
        ferry.add(f"{number}", 2, 3)
        ferry.clock.advance(30.0)
    ferry.clock.advance(59.0)
    assert not ferry.scheduler.has_work()
    assert ferry.scheduler.wait_s() == pytest.approx(1.0)
    ferry.clock.advance(1.0)
    assert ferry.step() == {f"{number}": 2 for number in range(8)}


def test_who_comes_while_it_is_under_way_waits_for_the_next_one(ferry):
    ferry.add("A", 2, 3)
    ferry.clock.advance(FIVE_MINUTES)
    assert ferry.step() == {"A": 2}
    for number in range(11):
        ferry.add(f"{number}", 2, 1)
    assert ferry.scheduler.wait_s() is None
    assert ferry.step() == {"A": 1}
    assert ferry.step() == {"A": 1}
    assert ferry.step() == {f"{number}": 2 for number in range(10)}  # full again at once
    assert not ferry.scheduler.has_work()
    ferry.clock.advance(FIVE_MINUTES)
    assert ferry.step() == {"10": 2}
    assert not ferry.scheduler.has_work()
    assert ferry.scheduler.wait_s() is None
    assert ferry.kv_cache.num_used_blocks == 0


def test_when_nobody_else_comes_it_leaves_with_who_is_there(ferry):
    ferry.add("A", 2, 1)
    ferry.scheduler.close()
    ferry.add("B", 2, 1)  # somebody came after all
    assert not ferry.scheduler.has_work()
    ferry.scheduler.close()
    assert ferry.step() == {"A": 2, "B": 2}


def test_passengers_that_find_no_tokens_in_the_first_step_board_in_the_next(make_line):
    line = make_line(batching="dynamic", max_num_seqs=4, max_num_batched_tokens=8)
    for name in "ABCDE":
        line.add(name, 6, 2)
    assert line.step() == {"A": 6, "B": 2}
    assert line.step() == {"A": 1, "B": 4, "C": 3}
    assert line.step() == {"B": 1, "C": 3, "D": 4}
    assert line.step() == {"C": 1, "D": 2}
    assert line.step() == {"D": 1}
    assert line.step() == {"E": 6}


def test_who_is_held_does_not_board_and_does_not_keep_the_others(ferry):
    held = ferry.add("held", 2, 1)
    held.is_held = True
    assert ferry.scheduler.wait_s() is None
    ferry.add("A", 2, 1)
    ferry.clock.advance(FIVE_MINUTES)
    assert ferry.step() == {"A": 2}
    held.is_held = False
    assert ferry.step() == {"held": 2}


def test_static_computes_finished_rows_until_the_batch_ends(make_line):
    line = make_line(batching="static", max_num_seqs=3)
    a, b = line.add("A", 2, 1), line.add("B", 3, 4)
    line.add("C", 2, 2)
    line.add("D", 2, 1)
    assert line.step() == {"A": 2, "B": 3, "C": 2}
    assert a.status is SequenceStatus.FINISHED
    assert line.step() == {"B": 1, "C": 1, "A": 1}
    assert line.step() == {"B": 1, "A": 1, "C": 1}
    assert (a.row, b.row) != (-1, -1)
    assert line.step() == {"B": 1, "A": 1, "C": 1}
    assert {s.row for s in line.sequences.values()} == {-1}
    assert line.step() == {"D": 2}
    assert not line.scheduler.has_work()
    assert line.kv_cache.num_used_blocks == 0


def test_dynamic_lets_finished_rows_go_and_nobody_in(make_line):
    line = make_line(batching="dynamic", max_num_seqs=2)
    for name, num_output in [("A", 1), ("B", 3), ("C", 1)]:
        line.add(name, 2, num_output)
    assert line.run() == [{"A": 2, "B": 2}, {"B": 1}, {"B": 1}, {"C": 2}]


def test_a_finished_row_gives_its_blocks_to_one_that_still_runs(make_line):
    # 5 blocks of 4: A ends with 2, and B wants 5.
    line = make_line(batching="static", max_num_seqs=2, num_blocks=5, enable_prefix_caching=False)
    line.add("A", 7, 1)
    b = line.add("B", 7, 13)
    timeline = line.run()
    assert timeline[:2] == [{"A": 7, "B": 7}, {"B": 1, "A": 1}]
    assert timeline[-1] == {"B": 1}
    assert (b.num_preemptions, len(b.token_ids)) == (0, 20)
    assert line.kv_cache.num_used_blocks == 0


def test_the_batch_takes_the_policy_s_first(make_line):
    line = make_line(batching="static", max_num_seqs=2, policy=make_policy("sjf", 1e9))
    for name, num_output in [("long", 9), ("short", 1), ("middle", 3)]:
        line.add(name, 2, num_output)
    assert line.step() == {"short": 2, "middle": 2}


@pytest.mark.parametrize("delay_s", [-1.0, float("inf"), float("nan")])
def test_a_delay_that_cannot_be_is_refused_with_its_value(delay_s):
    with pytest.raises(InvalidConfig, match=r"max_queue_delay_ms is .*; it must be at least 0 and finite"):
        make_batching("dynamic", capacity=1, max_delay_s=delay_s, now=lambda: 0.0)
