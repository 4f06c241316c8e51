from collections.abc import Callable

import pytest

from headway.core.sequence import Sequence, SequenceStatus
from headway.core.step import StepPlan
from headway.errors import InvalidConfig
from headway.scheduler.ledger import Ledger
from headway.scheduler.policy import make_policy

NEVER_S = 1e9
"""No ageing that counts here."""


def order_of(line) -> list[str]:
    """Who has the one row, in turn."""
    return [name for step in line.run() for name in step]


def make_one_row(make_line, name: str, ageing_s: float = NEVER_S, **others):
    return make_line(
        max_num_seqs=1, max_num_batched_tokens=8192, num_blocks=2000, policy=make_policy(name, ageing_s), **others
    )


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("fcfs", ["A", "B", "C", "D"]),
        ("priority", ["C", "A", "B", "D"]),  # 0, 0, -1, 5
        ("sjf", ["D", "C", "A", "B"]),  # 8 new, 8 new and 16 known, 6, 1
    ],
)
def test_the_order_of_four_that_came_together(make_line, name, order):
    line = make_one_row(make_line, name)
    for request, num_prompt, num_output, priority in [("A", 2, 8, 0), ("B", 16, 8, 0), ("C", 2, 6, -1), ("D", 3, 1, 5)]:
        line.add(request, num_prompt, num_output, priority=priority)
    assert list(dict.fromkeys(order_of(line))) == order


@pytest.mark.parametrize(("earlier_s", "first"), [(9.0, "new"), (11.0, "old")])
def test_ten_seconds_of_waiting_are_worth_a_level_of_priority(make_line, earlier_s, first):
    line = make_one_row(make_line, "priority", 10.0)
    line.add("running", 2, 2)
    line.step()
    line.add("old", 2, 1, priority=1)
    line.clock.advance(earlier_s)
    line.add("new", 2, 1, priority=0)
    assert order_of(line)[1] == first


@pytest.mark.parametrize(("earlier_s", "first"), [(4.0, "short"), (6.0, "long")])
def test_ten_seconds_of_waiting_are_worth_a_thousand_tokens_of_work(make_line, earlier_s, first):
    line = make_one_row(make_line, "sjf", 10.0)
    line.add("running", 2, 2)
    line.step()
    line.add("long", 2, 501)
    line.clock.advance(earlier_s)
    line.add("short", 2, 1)
    assert order_of(line)[1] == first


def wait_among(line, poor: Sequence, add_better: Callable[[int], None]) -> int:
    """Seconds until `poor` runs where one that goes before it comes each second, and one is served."""
    second = 0
    while poor.status is SequenceStatus.WAITING:
        second += 1
        assert second < 1000
        line.clock.advance(1.0)
        add_better(second)
        line.step()
    return second


def test_the_lowest_priority_runs_at_last_although_higher_ones_keep_coming(make_line):
    line = make_one_row(make_line, "priority", 10.0)
    poor = line.add("poor", 2, 1, priority=3)
    # Three levels of 10 s: it goes before who comes at the second 30.
    assert wait_among(line, poor, lambda second: line.add(f"{second}", 2, 1, priority=0)) == 30


def test_the_longest_job_runs_at_last_although_shorter_ones_keep_coming(make_line):
    line = make_one_row(make_line, "sjf", 10.0)
    poor = line.add("poor", 2, 4000)
    # 4,000 tokens less 1: a bit less than 40 s.
    assert wait_among(line, poor, lambda second: line.add(f"{second}", 2, 1)) == 40


def test_the_tenant_who_was_served_most_runs_at_last_although_others_keep_coming(make_line):
    line = make_one_row(make_line, "fair", 10.0)
    line.add("heavy", 5000, 1, tenant="heavy")
    poor = line.add("poor", 2, 1, tenant="heavy")
    line.add("0", 2, 1, tenant="0")
    assert line.step() == {"heavy": 5000}
    # Each new tenant comes before the last one is served, so at 0 tokens; 5,000 tokens are 50 s, and one waits always.
    assert wait_among(line, poor, lambda second: line.add(f"{second}", 2, 1, tenant=f"{second}")) == 51


def test_tenants_are_served_the_same_number_of_tokens(make_line):
    line = make_one_row(make_line, "fair", enable_prefix_caching=False)
    for number in range(4):
        line.add(f"a{number}", 8, 1, tenant="A")
    for number in range(8):
        line.add(f"b{number}", 4, 1, tenant="B")
    assert order_of(line) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "b4", "b5", "a3", "b6", "b7"]


def test_what_starts_together_is_shared_too(make_line):
    line = make_line(max_num_seqs=6, max_num_batched_tokens=64, policy=make_policy("fair", NEVER_S))
    for number in range(8):
        line.add(f"a{number}", 4, 2, tenant="A")
    for number in range(2):
        line.add(f"b{number}", 4, 2, tenant="B")
    assert list(line.step()) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_output_tokens_count_as_they_come(make_line):
    line = make_line(max_num_seqs=1, policy=make_policy("fair", NEVER_S), enable_prefix_caching=False)
    line.add("a0", 2, 7, tenant="A")  # 8 tokens are computed: 2 and 6
    for number in range(4):
        line.add(f"b{number}", 4, 1, tenant="B")
    line.add("a1", 2, 1, tenant="A")
    assert list(dict.fromkeys(order_of(line))) == ["a0", "b0", "b1", "b2", "a1", "b3"]  # at 8 and 8 b2 came first


def test_who_was_away_does_not_save_up(make_line):
    line = make_one_row(make_line, "fair", enable_prefix_caching=False)
    for number in range(6):
        line.add(f"a{number}", 4, 1, tenant="A")
    for _ in range(3):
        line.step()
    for number in range(3):
        line.add(f"b{number}", 4, 1, tenant="B")
    assert order_of(line) == ["a3", "b0", "a4", "b1", "a5", "b2"]


def test_what_the_cache_had_and_what_is_computed_again_is_not_charged():
    def sequence(computed: int, **fields) -> Sequence:
        made = {"request_id": "r", "choice": 0, "arrival": 0, "token_ids": [1] * 9, "num_prompt_tokens": 9}
        return Sequence(**made, max_total_tokens=20, num_computed_tokens=computed, tenant="T", **fields)

    ledger = Ledger()
    hit, again = sequence(9, num_cached_tokens=8), sequence(5, num_served_tokens=7)
    for each in (hit, again):
        ledger.join(each)
    ledger.note(StepPlan(sequences=[hit, again], num_tokens=[1, 5]))
    assert ledger.served == {"T": 1}
    again.num_computed_tokens = 9
    ledger.note(StepPlan(sequences=[again], num_tokens=[4]))
    assert ledger.served == {"T": 3}
    for each in (hit, again):
        ledger.leave(each)
    assert ledger.served == {}


def test_tenants_that_are_gone_are_forgotten_when_there_are_many():
    ledger = Ledger()
    made = {"request_id": "r", "choice": 0, "arrival": 0, "token_ids": [1, 2], "num_prompt_tokens": 2}
    stays = Sequence(**made, max_total_tokens=9, tenant="stays")
    ledger.join(stays)
    for number in range(3000):
        one = Sequence(**made, max_total_tokens=9, tenant=f"tenant {number}", num_computed_tokens=2)
        ledger.join(one)
        ledger.note(StepPlan(sequences=[one], num_tokens=[2]))
        ledger.leave(one)
        assert len(ledger.served) <= 1005
    assert ledger.served["stays"] == 0


def test_the_lower_priority_gives_its_blocks_although_it_came_first(make_line):
    # 5 blocks of 4: "high" needs them all in the end.
    line = make_line(num_blocks=5, enable_prefix_caching=False, policy=make_policy("priority", NEVER_S))
    low = line.add("low", 4, 8, priority=1)
    high = line.add("high", 7, 13, priority=0)
    timeline = line.run()
    assert (high.num_preemptions, low.num_preemptions) == (0, 1)
    assert timeline[0] == {"high": 7, "low": 4}
    assert timeline[-1].keys() == {"low"}


@pytest.mark.parametrize("ageing_s", [0.0, -1.0, float("inf"), float("nan")])
def test_ageing_cannot_be_turned_off(ageing_s):
    with pytest.raises(InvalidConfig, match=r"scheduling_ageing_s is .*; it must be over 0 and finite"):
        make_policy("priority", ageing_s)
