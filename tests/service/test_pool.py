"""The pool as a table: events in, effects out; no threads, no sleeps."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headway.errors import CorruptCheckpoint, HeadwayError, ModelNotReady, QueueFull, ShuttingDown, WorkerDied
from headway.service.events import (
    Deny,
    Drain,
    Grant,
    Keep,
    LeaseEnded,
    Start,
    Stop,
    Unload,
    Unwant,
    Want,
    WorkerEnded,
    WorkerLost,
    WorkerReady,
)
from headway.service.pool import Pool
from headway.service.residency import grant_at_once, transition
from service.pool_bench import Bench, denied

DIED = WorkerDied("gone")


def one_place(*models: str, **config: object) -> Bench:
    """Models of which one may be resident at a time."""
    return Bench(models=dict.fromkeys(models or ("a",), 0), max_models=1, **config)


def test_the_first_request_starts_the_model_and_all_who_wait_are_granted_when_it_is_ready() -> None:
    bench = one_place()
    assert bench.post(Want(1, "a"), Want(2, "a")) == [Start("a", 1)]
    assert bench.post(WorkerReady("a", 1)) == [Grant(1, "a", 1), Grant(2, "a", 1)]
    assert bench.post(Want(3, "a")) == [Grant(3, "a", 1)]
    assert bench.pool.num_leases == 3


def test_a_kept_model_starts_unasked_and_again_when_it_dies() -> None:
    bench = one_place()
    assert bench.post(Keep("a")) == [Start("a", 1)]
    assert bench.post(WorkerReady("a", 1)) == []
    assert bench.post(WorkerLost("a", 1), WorkerEnded("a", 1, DIED)) == [Start("a", 2)]
    assert (bench.pool.state.num_starts, bench.pool.state.num_restarts) == (2, 1)


def test_a_model_that_is_not_kept_stays_down_until_it_is_asked_for() -> None:
    bench = one_place()
    assert bench.post(Want(1, "a"), WorkerReady("a", 1), WorkerEnded("a", 1, DIED)) == [
        Start("a", 1),
        Grant(1, "a", 1),
    ]
    assert bench.post(Want(2, "a")) == [Start("a", 2)]


def test_requests_that_come_between_a_death_and_its_reaping_wait_for_the_next_start() -> None:
    bench = one_place()
    bench.post(Keep("a"), Want(1, "a"), WorkerReady("a", 1))
    assert bench.post(WorkerLost("a", 1), Want(2, "a")) == []
    assert bench.post(WorkerEnded("a", 1, DIED)) == [Start("a", 2)]
    assert bench.post(WorkerReady("a", 2)) == [Grant(2, "a", 2)]


def test_a_failed_load_denies_who_waits_with_its_reason_and_backs_off() -> None:
    bench = one_place(restart_delays_s=(0.0,), reload_delays_s=(0.5, 1.0, 5.0))
    fault = CorruptCheckpoint("the file is cut")
    assert bench.post(Keep("a"), Want(1, "a")) == [Start("a", 1)]
    # What failed a moment ago would fail again: there is no start at once.
    assert bench.post(WorkerEnded("a", 1, fault)) == [Deny(1, fault)]
    assert bench.advance(0.49) == []
    assert bench.advance(0.01) == [Start("a", 2)]
    assert bench.post(Want(2, "a"), WorkerEnded("a", 2, fault)) == [Deny(2, fault)]
    effects = bench.post(Want(3, "a"))
    assert denied(effects) == [(3, ModelNotReady)]
    assert "the file is cut" in str(effects[0].error)
    assert effects[0].error.retry_after_s == 1.0
    assert bench.advance(0.99) == []
    assert bench.advance(0.01) == [Start("a", 3)]
    bench.post(WorkerEnded("a", 3, fault))
    assert bench.advance(4.99) == []
    assert bench.advance(0.01) == [Start("a", 4)]
    # The last delay repeats.
    bench.post(WorkerEnded("a", 4, fault))
    assert bench.advance(5.0) == [Start("a", 5)]
    assert bench.post(WorkerReady("a", 5), Want(4, "a")) == [Grant(4, "a", 5)]
    assert bench.pool.state.models["a"].error is None


@pytest.mark.parametrize(("has_served", "delay"), [(True, 0.0), (False, 1.0)])
def test_only_a_worker_that_served_resets_the_count(has_served: bool, delay: float) -> None:
    bench = one_place(restart_delays_s=(0.0, 1.0), reload_delays_s=(0.5,))
    bench.post(Keep("a"), WorkerEnded("a", 1, DIED))
    bench.advance(0.5)
    bench.post(WorkerReady("a", 2))
    bench.post(Want(1, "a"), LeaseEnded("a", 2, has_served))
    effects = bench.post(WorkerLost("a", 2), WorkerEnded("a", 2, DIED))
    assert effects == ([Start("a", 3)] if has_served else [])
    assert bench.advance(delay) == ([] if has_served else [Start("a", 3)])


def test_a_load_that_takes_too_long_is_stopped_and_is_a_failure() -> None:
    bench = one_place(load_timeout_s=10.0, reload_delays_s=(7.0,))
    bench.post(Want(1, "a"))
    assert bench.advance(9.9) == []
    stop, deny = bench.advance(0.1)
    assert isinstance(stop, Stop)
    assert "10 s" in str(stop.error)
    assert denied([deny]) == [(1, ModelNotReady)]
    bench.post(WorkerEnded("a", 1, stop.error))
    assert bench.status() == "failed"
    # Too late for the start that it speaks of.
    assert bench.post(WorkerReady("a", 1)) == []
    assert denied(bench.post(Want(2, "a"))) == [(2, ModelNotReady)]


def test_the_load_timeout_does_not_touch_a_model_that_became_ready() -> None:
    bench = one_place(load_timeout_s=10.0)
    bench.post(Want(1, "a"), WorkerReady("a", 1))
    assert bench.advance(11.0) == []
    assert bench.status() == "ready"


def test_no_more_wait_than_may() -> None:
    bench = one_place(max_queued_requests=2)
    effects = bench.post(Want(1, "a"), Want(2, "a"), Want(3, "a"))
    assert denied(effects) == [(3, QueueFull)]
    assert bench.post(Unwant(1), Want(4, "a")) == []
    assert bench.post(WorkerReady("a", 1)) == [Grant(2, "a", 1), Grant(4, "a", 1)]


@pytest.mark.parametrize("end", [WorkerReady("a", 1), WorkerEnded("a", 1, DIED), Drain()])
def test_a_long_line_is_granted_or_denied_without_comparing_each_with_each(
    end: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_compared = 0

    def compare(one: Want, other: object) -> bool:
        nonlocal num_compared
        num_compared += 1
        return one is other

    monkeypatch.setattr(Want, "__eq__", compare)
    bench = one_place()
    bench.post(*(Want(ticket, "a") for ticket in range(300)))
    effects = bench.post(end)
    assert sum(isinstance(effect, Grant | Deny) for effect in effects) == 300
    assert num_compared <= 300


def test_news_of_an_earlier_generation_changes_nothing() -> None:
    bench = one_place()
    bench.post(Keep("a"), WorkerReady("a", 1), Want(1, "a"), WorkerEnded("a", 1, DIED), WorkerReady("a", 2))
    bench.post(Want(2, "a"))
    assert bench.post(LeaseEnded("a", 1), WorkerLost("a", 1), WorkerEnded("a", 1, DIED), WorkerReady("a", 1)) == []
    assert bench.status() == "ready"
    assert bench.pool.num_leases == 1


def test_draining_denies_who_waits_and_who_comes_but_ends_no_lease() -> None:
    bench = one_place("a", "b")
    bench.post(Want(1, "a"), WorkerReady("a", 1), Want(2, "b"))
    assert denied(bench.post(Drain())) == [(2, ShuttingDown)]
    assert denied(bench.post(Want(3, "a"))) == [(3, ShuttingDown)]
    assert bench.pool.num_leases == 1
    assert bench.post(LeaseEnded("a", 1), WorkerEnded("a", 1, DIED)) == []


def test_another_model_waits_for_the_leases_then_takes_the_place() -> None:
    bench = one_place("a", "b")
    bench.post(Want(1, "a"), WorkerReady("a", 1))
    assert bench.post(Want(2, "b")) == []
    # 3 came after 2: granting it would let a stream of requests for a keep b out for ever.
    assert bench.post(Want(3, "a")) == []
    assert bench.post(LeaseEnded("a", 1)) == [Stop("a", 1)]
    assert bench.post(WorkerEnded("a", 1)) == [Start("b", 1)]
    assert bench.post(WorkerReady("b", 1)) == [Grant(2, "b", 1)]
    assert bench.post(LeaseEnded("b", 1)) == [Stop("b", 1)]
    assert bench.post(WorkerEnded("b", 1)) == [Start("a", 2)]
    assert bench.post(WorkerReady("a", 2)) == [Grant(3, "a", 2)]


def test_who_waited_behind_another_model_is_granted_when_that_one_is_wanted_no_more() -> None:
    bench = one_place("a", "b")
    bench.post(Want(1, "a"), WorkerReady("a", 1), Want(2, "b"), Want(3, "a"))
    assert bench.post(Unwant(2)) == [Grant(3, "a", 1)]


def test_a_lease_ended_twice_or_never_granted_does_not_go_below_zero() -> None:
    bench = one_place()
    bench.post(Want(1, "a"), WorkerReady("a", 1), LeaseEnded("a", 1), LeaseEnded("a", 1), Unwant(99))
    assert bench.pool.num_leases == 0


def check_at_once(pool: Pool, model: str, *, is_use: bool) -> bool:
    """A lease without a ticket is given only where a ticket would be granted at once, and leaves the same state.
    Whether it is given."""
    want = Want(10**6, model, is_use)
    state, effects = transition(pool.state, want, now=7.0, rules=pool.rules)
    at_once = grant_at_once(pool.state, model, is_use=is_use, now=7.0)
    if at_once is None:
        return False
    assert at_once == state
    assert list(effects) == [Grant(want.ticket, model, state.models[model].generation)]
    return True


def test_a_lease_at_once_is_given_to_whom_a_ticket_would_be_granted_at_once() -> None:
    bench = one_place("a", "b")
    assert not check_at_once(bench.pool, "a", is_use=True)  # cold
    assert not check_at_once(bench.pool, "unknown", is_use=True)
    bench.post(Want(1, "a"))
    assert not check_at_once(bench.pool, "a", is_use=True)  # it loads
    bench.post(WorkerReady("a", 1))
    assert check_at_once(bench.pool, "a", is_use=True)
    assert check_at_once(bench.pool, "a", is_use=False)
    bench.post(Want(2, "b"))
    assert not check_at_once(bench.pool, "a", is_use=True)  # b waits for its place
    bench.post(Unwant(2))
    assert check_at_once(bench.pool, "a", is_use=True)
    bench.post(Unload("a"))
    assert not check_at_once(bench.pool, "a", is_use=True)  # it leaves
    bench.post(Drain())
    assert not check_at_once(bench.pool, "a", is_use=True)


def test_a_lease_at_once_is_one_as_any_other() -> None:
    bench = one_place("a", "b")
    assert bench.pool.try_grant("a", is_use=True) is None
    bench.post(Want(1, "a"), WorkerReady("a", 1), LeaseEnded("a", 1))
    assert bench.pool.try_grant("a", is_use=True) == 1
    assert bench.post(Want(2, "b")) == []
    assert bench.post(LeaseEnded("a", 1)) == [Stop("a", 1)]


class RandomPool(RuleBasedStateMachine):
    """Any order of events: each ticket is answered at most once, and at most one model has the place."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = one_place("a", "b", max_queued_requests=4, load_timeout_s=10.0, restart_delays_s=(0.0, 3.0))
        self.next_ticket = 1
        self.open: set[int] = set()
        self.granted: list[Grant] = []
        self.running: dict[str, int] = {}

    def act(self, *events: object) -> None:
        for effect in self.bench.post(*events):
            self.note(effect)

    def note(self, effect: object) -> None:
        match effect:
            case Start(model, generation):
                assert not self.running
                self.running[model] = generation
            case Grant(ticket) | Deny(ticket):
                assert ticket in self.open
                self.open.discard(ticket)
                if isinstance(effect, Grant):
                    assert self.running[effect.model] == effect.generation
                    self.granted.append(effect)
            case Stop(model, generation):
                assert self.running[model] == generation

    @rule(model=st.sampled_from("ab"))
    def want(self, model: str) -> None:
        self.open.add(self.next_ticket)
        self.act(Want(self.next_ticket, model))
        self.next_ticket += 1

    @rule(data=st.data())
    def unwant(self, data: st.DataObject) -> None:
        if self.open:
            ticket = data.draw(st.sampled_from(sorted(self.open)))
            self.open.discard(ticket)
            self.act(Unwant(ticket))

    @rule()
    def become_ready(self) -> None:
        self.act(*[WorkerReady(model, generation) for model, generation in self.running.items()])

    @rule(error=st.sampled_from([None, DIED]))
    def end(self, error: HeadwayError | None) -> None:
        running, self.running = self.running, {}
        for model, generation in running.items():
            self.granted = [grant for grant in self.granted if grant.model != model]
            self.act(WorkerLost(model, generation), WorkerEnded(model, generation, error))

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        if self.granted:
            grant = self.granted.pop(data.draw(st.integers(0, len(self.granted) - 1)))
            self.act(LeaseEnded(grant.model, grant.generation))

    @rule(seconds=st.sampled_from([1.0, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        for effect in self.bench.advance(seconds):
            self.note(effect)

    @invariant()
    def it_holds(self) -> None:
        self.bench.pool.check()
        assert {want.ticket for want in self.bench.pool.state.waiting} == self.open
        assert self.bench.pool.num_leases == len(self.granted)
        assert all(self.bench.status(model) in ("loading", "ready", "stopping") for model in self.running)
        for model in "ab":
            check_at_once(self.bench.pool, model, is_use=True)


TestRandomPool = RandomPool.TestCase
TestRandomPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
