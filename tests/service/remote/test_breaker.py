"""The circuit breaker, case by case, and over random acts."""

import random

import pytest

from headway.errors import UpstreamUnavailable
from headway.service.remote.breaker import (
    Ask,
    BreakerConfig,
    BreakerState,
    CircuitBreaker,
    Outcome,
    transition,
)
from headway.testing.fake_clock import FakeClock

CONFIG = BreakerConfig(max_failures=3, window_s=10.0, open_s=5.0)


def after(*acts: tuple[float, Ask | Outcome], state: BreakerState | None = None) -> tuple[BreakerState, list[bool]]:
    state, allowed = state or BreakerState(), []
    for now, event in acts:
        state, is_allowed = transition(state, event, now=now, config=CONFIG)
        allowed.append(is_allowed)
    return state, allowed


def failure(period: int = 0) -> Outcome:
    return Outcome(period, "failure")


def opened(at: float = 2.0) -> BreakerState:
    return after((0.0, failure()), (1.0, failure()), (at, failure()))[0]


def test_it_opens_at_the_third_failure_within_the_window() -> None:
    assert after((0.0, failure()), (9.0, failure()))[0].status == "closed"
    assert opened().status == "open"
    assert opened().retry_at == 7.0
    # The first is over 10 s old by then.
    state, _ = after((0.0, failure()), (9.0, failure()), (10.5, failure()))
    assert (state.status, state.failures) == ("closed", (9.0, 10.5))


def test_success_between_failures_does_not_hide_them() -> None:
    state, _ = after((0.0, failure()), (0.5, Outcome(0, "success")), (1.0, failure()), (2.0, failure()))
    assert state.status == "open"


def test_open_it_lets_nobody_go_until_its_time_and_then_one() -> None:
    state, allowed = after((2.0, Ask()), (6.9, Ask()), (7.0, Ask()), (7.0, Ask()), (100.0, Ask()), state=opened())
    assert allowed == [False, False, True, False, False]
    assert state.status == "half_open"


@pytest.mark.parametrize(("how", "status", "retry_at"), [("success", "closed", 7.0), ("failure", "open", 13.0)])
def test_the_probe_decides(how: str, status: str, retry_at: float) -> None:
    probing, _ = after((7.0, Ask()), state=opened())
    state, _ = after((8.0, Outcome(probing.period, how)), state=probing)  # type: ignore[arg-type]
    assert (state.status, state.retry_at, state.failures) == (status, retry_at, ())


def test_a_probe_whose_caller_left_makes_room_for_the_next() -> None:
    probing, _ = after((7.0, Ask()), state=opened())
    state, allowed = after((8.0, Outcome(probing.period, "abandoned")), (8.0, Ask()), state=probing)
    assert (state.status, allowed) == ("half_open", [True, True])


def test_answers_to_what_was_asked_before_it_opened_change_nothing() -> None:
    probing, _ = after((7.0, Ask()), state=opened())
    for state in (opened(), probing):
        assert after((8.0, Outcome(0, "success")), (8.0, failure(0)), state=state)[0] == state


def test_random_acts_never_let_two_probes_go_nor_open_without_failures() -> None:
    draw = random.Random(7)
    for _ in range(200):
        state, now, flying = BreakerState(), 0.0, list[int]()
        num_probes = 0
        for _ in range(200):
            now += draw.random()
            before = state
            if flying and draw.random() < 0.5:
                outcome = Outcome(flying.pop(draw.randrange(len(flying))), draw.choice(("success", "failure")))
                state, _ = transition(state, outcome, now=now, config=CONFIG)
                if before.status == "half_open" and outcome.period == before.period:
                    num_probes -= 1
                if state.status == "open" and before.status == "closed":
                    assert outcome.how == "failure"
                    assert len(before.failures) >= CONFIG.max_failures - 1
            else:
                state, is_allowed = transition(state, Ask(), now=now, config=CONFIG)
                if is_allowed:
                    flying.append(state.period)
                    num_probes += state.status == "half_open"
                else:
                    assert state == before
            assert num_probes == (state.status == "half_open")


def test_who_is_not_let_go_hears_the_server_and_the_seconds() -> None:
    clock = FakeClock()
    breaker = CircuitBreaker("the server of model far", CONFIG, clock)
    for _ in range(3):
        breaker.leave(breaker.enter(), "failure")
    clock.advance(1.0)
    with pytest.raises(UpstreamUnavailable, match=r"the server of model far failed 3 times .* in 4 s") as caught:
        breaker.enter()
    assert caught.value.retry_after_s == 4.0
