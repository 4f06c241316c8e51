"""Several residents under a budget: who starts, who is evicted, who waits for whom. Events in, effects out."""

import pytest

from headway.errors import CorruptCheckpoint, ModelNotFound, ModelNotReady, OutOfMemory, WorkerDied
from headway.service import residency
from headway.service.events import (
    CPU,
    AddModel,
    Deny,
    Estimate,
    Estimated,
    Forget,
    Grant,
    Keep,
    LeaseEnded,
    Measured,
    ModelFacts,
    Need,
    RemoveModel,
    Start,
    Stop,
    Unload,
    Unwant,
    Want,
    WorkerEnded,
    WorkerReady,
)
from headway.service.pool_state import Step
from service.pool_bench import Bench, denied, facts, granted

MB, GB = 10**6, 10**9


def stopped(effects: list[object]) -> list[str]:
    return [effect.model for effect in effects if isinstance(effect, Stop)]


def started(effects: list[object]) -> list[str]:
    return [effect.model for effect in effects if isinstance(effect, Start)]


class TestRoom:
    @pytest.mark.case("evict-keep-04", "evict-cpu-05")
    def test_two_that_fit_stay_however_they_are_asked_for(self) -> None:
        bench = Bench(GB, models={"a": 50 * MB, "b": 50 * MB})
        bench.use(*"abababab")
        assert bench.statuses() == {"a": "ready", "b": "ready"}
        assert bench.pool.state.num_starts == 2

    def test_loads_go_on_at_the_same_time_as_far_as_memory_allows(self) -> None:
        bench = Bench(10, models={"a": 4, "b": 4, "c": 4})
        assert started(bench.post(Want(1, "a"), Want(2, "b"), Want(3, "c"))) == ["a", "b"]
        assert started(bench.ready("a")) == []
        assert stopped(bench.release("a")) == ["a"]
        assert started(bench.gone("a")) == ["c"]

    def test_no_more_load_at_once_than_share_the_cores_well(self) -> None:
        bench = Bench(10, models={"a": 1, "b": 1, "c": 1})
        assert started(bench.post(Want(1, "a"), Want(2, "b"), Want(3, "c"))) == ["a", "b"]
        assert started(bench.ready("b")) == ["c"]

    def test_max_models_two_with_lru_a_b_a_c_evicts_b(self) -> None:
        bench = Bench(models={"a": 1, "b": 1, "c": 1}, max_models=2, eviction="lru")
        bench.use(*"aba")
        assert stopped(bench.post(Want(9, "c"))) == ["b"]

    @pytest.mark.parametrize(("policy", "victim"), [("lru", "large"), ("cost", "small")])
    def test_the_policy_says_who_leaves(self, policy: str, victim: str) -> None:
        sizes = {"small": 50 * MB, "large": 5 * GB, "new": 40 * MB}
        bench = Bench(5 * GB + 50 * MB, models=sizes, eviction=policy)
        for name, load_s in (("large", 30.0), ("small", 0.2)):
            bench.want(name)
            bench.ready(name, load_s)
            bench.clock.advance(1.0)
            bench.release(name)
        bench.effects.take()
        assert stopped(bench.post(Want(9, "new"))) == [victim]

    def test_what_leaves_is_not_free_before_it_is_gone_and_nobody_else_leaves_meanwhile(self) -> None:
        bench = Bench(10, models={"a": 5, "b": 5, "c": 5}, eviction="lru")
        bench.use("a", "b")
        bench.effects.take()
        assert stopped(bench.post(Want(11, "c"))) == ["a"]
        assert bench.post(Want(12, "c"), Unwant(12)) == []
        assert bench.status("b") == "ready"
        assert started(bench.gone("a")) == ["c"]

    def test_one_that_is_too_large_alone_is_denied_at_once_with_both_numbers_and_evicts_nobody(self) -> None:
        bench = Bench(4 * GB, models={"a": GB, "huge": 5 * GB})
        bench.use("a")
        bench.effects.take()
        (deny,) = bench.post(Want(9, "huge"))
        assert isinstance(deny, Deny)
        assert isinstance(deny.error, OutOfMemory)
        assert "5000000000 bytes" in deny.error.message
        assert "4000000000 bytes" in deny.error.message
        assert "raise --memory-limit" in deny.error.message
        assert bench.status("a") == "ready"

    @pytest.mark.case("evict-pin-03")
    @pytest.mark.parametrize(
        ("limits", "words"),
        [
            ({"memory": 100, "max_models": 1}, r"b has no place: 1 models .*--max-models.*pinned: a\. Unpin one"),
            (
                {"memory": 10},
                r"b needs .* \(6 bytes\) .*pinned models leave .* \(4 bytes\): a\. Unpin one, or raise --memory-limit",
            ),
        ],
    )
    def test_what_is_pinned_is_never_evicted_and_who_wants_its_place_is_told_at_once(
        self, limits: dict[str, int], words: str
    ) -> None:
        limits = dict(limits)
        memory = limits.pop("memory")
        bench = Bench(memory, models={"a": facts(6, is_pinned=True), "b": 6}, **limits)
        bench.post(Keep("a"))
        bench.ready("a")
        (deny,) = bench.post(Want(1, "b"))
        assert isinstance(deny, Deny)
        assert isinstance(deny.error, ModelNotReady)
        with pytest.raises(ModelNotReady, match=words):
            raise deny.error
        bench.post(AddModel("a", facts(6)))
        assert stopped(bench.post(Want(2, "b"))) == ["a"]

    def test_a_pinned_model_makes_room_for_itself(self) -> None:
        bench = Bench(10, models={"a": 6, "b": facts(6, is_pinned=True)})
        bench.use("a")
        bench.effects.take()
        assert stopped(bench.post(Keep("b"))) == ["a"]
        assert started(bench.gone("a")) == ["b"]

    def test_a_kept_model_that_is_not_pinned_evicts_nobody(self) -> None:
        bench = Bench(10, models={"a": 6, "b": 6})
        bench.use("a")
        bench.effects.take()
        assert bench.post(Keep("b")) == []
        assert bench.statuses() == {"a": "ready", "b": "cold"}

    def test_two_pinned_models_that_do_not_fit_together_are_a_failure_that_is_told(self) -> None:
        bench = Bench(10, models={"a": facts(6, is_pinned=True), "b": facts(6, is_pinned=True)})
        bench.post(Keep("a"), Keep("b"))
        bench.ready("a")
        assert bench.statuses() == {"a": "ready", "b": "failed"}
        assert "pinned models leave" in str(bench.pool.state.models["b"].error)

    def test_a_gpu_has_a_budget_of_its_own(self) -> None:
        on_gpu = Need({"cuda:0": 6, CPU: 1}, "cuda:0")
        models = {"a": facts(9), "g": ModelFacts(on_gpu), "h": ModelFacts(on_gpu)}
        bench = Bench(20, models=models)
        bench.pool.rules.budget["cuda:0"] = 10  # type: ignore[index]
        bench.use("a", "g")
        bench.effects.take()
        # The CPU has room, the GPU has not: only what is there can make room there.
        assert stopped(bench.post(Want(9, "h"))) == ["g"]
        bench.gone("g")
        assert bench.statuses() == {"a": "ready", "g": "cold", "h": "loading"}


class TestUsed:
    @pytest.mark.case("evict-active-01")
    def test_a_model_in_use_is_waited_for(self) -> None:
        bench = Bench(models={"a": 1, "b": 1}, max_models=1)
        bench.post(Want(1, "a"))
        bench.ready("a")
        assert bench.post(Want(2, "b")) == []
        assert stopped(bench.release("a")) == ["a"]
        assert started(bench.gone("a")) == ["b"]
        assert bench.ready("b") == [Grant(2, "b", 1)]

    @pytest.mark.case("evict-active-01")
    def test_with_a_queue_time_out_who_waits_too_long_gets_a_503_that_says_when_to_come_again(self) -> None:
        bench = Bench(models={"a": 1, "b": 1}, max_models=1, queue_timeout_s=5.0)
        bench.post(Want(1, "a"))
        bench.ready("a")
        bench.post(Want(2, "b"))
        assert bench.advance(4.9) == []
        (deny,) = bench.advance(0.2)
        assert isinstance(deny, Deny)
        assert isinstance(deny.error, ModelNotReady)
        assert deny.ticket == 2
        assert "5 s (--queue-timeout): models that are in use hold the memory" in deny.error.message
        assert deny.error.retry_after_s == 1.0
        # It waits no more: a stays.
        assert bench.release("a") == []

    def test_nothing_is_evicted_while_it_would_not_be_enough(self) -> None:
        bench = Bench(10, models={"a": 4, "b": 4, "c": 10})
        bench.use("b")
        bench.post(Want(11, "a"))
        bench.ready("a")
        bench.effects.take()
        assert bench.post(Want(12, "c")) == []
        assert bench.statuses() == {"a": "ready", "b": "ready", "c": "cold"}
        assert stopped(bench.release("a")) == ["b", "a"]

    def test_a_stream_of_requests_for_ready_models_does_not_starve_who_waits_for_their_room(self) -> None:
        bench = Bench(10, models={"a": 5, "b": 5, "c": 5}, eviction="lru")
        bench.post(Want(1, "a"), Want(2, "b"))
        bench.ready("a")
        bench.ready("b")
        # Only a, the longest unused, is in c's way: b goes on.
        bench.post(Want(3, "c"))
        assert granted(bench.post(Want(4, "a"), Want(5, "b"))) == [5]
        for ticket in range(6, 50):
            assert granted(bench.post(Want(ticket, "b"), LeaseEnded("b", 1))) == [ticket]
        assert stopped(bench.release("a")) == ["a"]
        assert started(bench.gone("a")) == ["c"]
        bench.ready("c")
        # Now 4, which came after 3, has its turn: c is not used, so it leaves.
        assert stopped(bench.release("c")) == ["c"]
        assert started(bench.gone("c")) == ["a"]
        assert granted(bench.ready("a")) == [4]

    def test_what_is_left_over_by_who_waits_may_be_had(self) -> None:
        bench = Bench(10, models={"a": 7, "b": 5, "c": 3, "d": 1})
        bench.post(Want(1, "a"))
        bench.ready("a")
        bench.post(Want(2, "b"))
        # Of 10, a has 7, and b will take 5 once a is gone: c fits now and then, and d beside it.
        assert started(bench.post(Want(3, "c"))) == ["c"]
        bench.ready("c")
        bench.post(Want(4, "d"))
        assert bench.status("d") == "cold"
        bench.release("a")
        assert started(bench.gone("a")) == ["b", "d"]

    def test_a_younger_ticket_does_not_take_what_an_older_one_waits_for(self) -> None:
        bench = Bench(10, models={"a": 6, "b": 10, "c": 4})
        bench.post(Want(1, "a"))
        bench.ready("a")
        bench.post(Want(2, "b"))
        assert bench.post(Want(3, "c")) == []
        bench.release("a")
        assert started(bench.gone("a")) == ["b"]

    def test_an_unused_model_that_an_older_ticket_counts_on_is_not_evicted_for_a_younger_one(self) -> None:
        bench = Bench(10, models={"a": 6, "b": 4, "c": 10, "d": 3})
        bench.use("b")
        bench.post(Want(11, "a"))
        bench.ready("a")
        bench.effects.take()
        # c waits for a's lease, and will have b's memory too; d gets none of it before.
        assert bench.post(Want(12, "c"), Want(13, "d")) == []
        assert bench.statuses() == {"a": "ready", "b": "ready", "c": "cold", "d": "cold"}
        bench.release("a")
        bench.gone("b")
        assert started(bench.gone("a")) == ["c"]

    def test_a_loading_model_is_no_victim_but_may_be_waited_for(self) -> None:
        bench = Bench(10, models={"a": 6, "b": 6})
        bench.post(Want(1, "a"))
        assert bench.post(Want(2, "b")) == []
        assert granted(bench.ready("a")) == [1]
        assert granted(bench.post(Want(3, "a"))) == []
        assert stopped(bench.release("a")) == ["a"]


class TestLoading:
    @pytest.mark.case("dup-load-05")
    def test_twenty_at_once_are_one_load(self) -> None:
        bench = Bench(models={"a": 1}, reload_delays_s=(1.0,))
        effects = bench.post(*(Want(ticket, "a") for ticket in range(20)))
        assert effects == [Start("a", 1)]
        fault = CorruptCheckpoint("cut")
        assert bench.gone("a", fault) == [Deny(ticket, fault) for ticket in range(20)]
        bench.advance(1.0)
        assert bench.post(Want(20, "a")) == [Start("a", 2)]

    def test_what_nobody_knows_the_need_of_is_looked_at_first_once(self) -> None:
        bench = Bench(10, models={"a": ModelFacts(), "b": 6})
        assert bench.post(Want(1, "a"), Want(2, "a")) == [Estimate("a", 1)]
        assert bench.post(Estimated("a", 1, Need({CPU: 6}))) == [Start("a", 2)]
        bench.ready("a")
        bench.post(LeaseEnded("a", 2), LeaseEnded("a", 2), Want(3, "b"))
        bench.gone("a")
        bench.ready("b")
        bench.release("b")
        bench.effects.take()
        assert stopped(bench.post(Want(4, "a"))) == ["b"]
        assert bench.gone("b") == [Start("a", 3)]

    def test_the_only_one_is_given_all_there_is_unless_a_catalog_comes(self) -> None:
        bench = Bench(10, models={"a": ModelFacts()})
        assert bench.post(Want(1, "a")) == [Start("a", 1)]
        assert bench.pool.charged == {CPU: 10}
        bench = Bench(10, models={"a": ModelFacts()}, expects_more=True)
        assert bench.post(Want(1, "a")) == [Estimate("a", 1)]

    def test_files_that_are_not_found_are_a_failed_load(self) -> None:
        bench = Bench(10, models={"a": ModelFacts(), "b": 6})
        bench.post(Want(1, "a"))
        fault = CorruptCheckpoint("no files")
        assert bench.post(WorkerEnded("a", 1, fault)) == [Deny(1, fault)]
        assert bench.status("a") == "failed"
        assert denied(bench.post(Want(2, "a"))) == [(2, ModelNotReady)]

    def test_the_only_model_starts_unasked_with_all_there_is(self) -> None:
        bench = Bench(10, models={"a": ModelFacts()})
        assert bench.post(Want(1, "a")) == [Start("a", 1)]
        assert bench.pool.charged == {CPU: 10}
        bench.post(WorkerReady("a", 1, need=Need({CPU: 4})))
        assert bench.pool.charged == {CPU: 4, "models": 1}

    def test_a_cache_has_what_is_free_up_to_what_it_makes_use_of(self) -> None:
        need = Need({CPU: 4}, more_bytes=3)
        models = {"a": ModelFacts(need), "b": ModelFacts(need), "c": ModelFacts(need)}
        bench = Bench(12, models=models, eviction="lru")
        assert bench.post(Want(1, "a")) == [Start("a", 1, more_bytes=3)]
        assert bench.post(Want(2, "b")) == [Start("b", 1, more_bytes=1)]
        bench.ready("a")
        bench.ready("b")
        bench.post(LeaseEnded("a", 1), LeaseEnded("b", 1), Want(3, "c"))
        assert bench.gone("a") == [Start("c", 1, more_bytes=3)]

    def test_a_timed_out_estimate_is_stopped(self) -> None:
        bench = Bench(10, models={"a": ModelFacts(), "b": 6}, load_timeout_s=3.0)
        bench.post(Want(1, "a"))
        effects = bench.advance(3.0)
        assert stopped(effects) == ["a"]
        assert denied(effects) == [(1, ModelNotReady)]
        bench.post(WorkerEnded("a", 1, ModelNotReady("late")))
        assert bench.status("a") == "failed"


class TestMeasured:
    def test_a_guess_is_given_up_for_the_first_measure_and_the_most_is_remembered(self) -> None:
        bench = Bench(10, models={"a": ModelFacts(Need({CPU: 8}, is_guess=True)), "b": 5})
        bench.post(Want(1, "a"))
        bench.ready("a")
        assert bench.post(Want(2, "b")) == []
        assert started(bench.post(Measured("a", 1, {CPU: 3}))) == ["b"]
        bench.post(Measured("a", 1, {CPU: 4}), Measured("a", 1, {CPU: 2}))
        assert bench.pool.state.models["a"].need == Need({CPU: 4})

    def test_a_plan_is_charged_whole_whatever_is_mapped_of_it(self) -> None:
        bench = Bench(10, models={"a": 8, "b": 5})
        bench.post(Want(1, "a"))
        bench.ready("a")
        bench.post(Measured("a", 1, {CPU: 3}))
        assert bench.pool.charged[CPU] == 8
        assert bench.post(Want(2, "b")) == []

    def test_growth_over_the_limit_evicts_who_is_unused_as_soon_as_there_is_one(self) -> None:
        bench = Bench(10, models={"a": 5, "b": 5})
        bench.post(Want(1, "a"), Want(2, "b"))
        bench.ready("a")
        bench.ready("b")
        assert bench.post(Measured("b", 1, {CPU: 7})) == []
        (stop,) = bench.release("a")
        assert stop == Stop("a", 1, reason="growth")
        bench.gone("a")
        # Its next start reserves what it took.
        assert bench.pool.state.models["b"].need == Need({CPU: 7})

    def test_who_is_alone_over_the_limit_is_left_and_starts_again_within_it(self) -> None:
        bench = Bench(10, models={"a": 5, "b": 5})
        bench.use("a")
        bench.effects.take()
        assert bench.post(Measured("a", 1, {CPU: 12})) == []
        bench.post(Unload("a"))
        bench.gone("a")
        assert started(bench.post(Want(1, "a"))) == ["a"]

    def test_a_measure_of_an_earlier_process_changes_nothing(self) -> None:
        bench = Bench(10, models={"a": 5})
        bench.use("a")
        bench.post(Measured("a", 7, {CPU: 9}))
        assert bench.pool.charged[CPU] == 5


class TestIdle:
    @pytest.mark.case("idle-timer-02")
    def test_it_is_unloaded_so_long_after_its_last_lease_and_no_sooner(self) -> None:
        bench = Bench(10, models={"a": facts(1, idle_timeout_s=2.0)})
        bench.post(Want(1, "a"))
        bench.ready("a")
        for _ in range(5):  # a request of 5 s
            assert bench.advance(1.0) == []
        bench.release("a")
        assert bench.advance(1.0) == []
        bench.post(Want(2, "a"), LeaseEnded("a", 1))
        bench.effects.take()
        assert bench.advance(1.9) == []
        assert bench.advance(0.1) == [Stop("a", 1, reason="idle")]
        bench.gone("a")
        assert bench.post(Want(3, "a")) == [Start("a", 2)]

    @pytest.mark.case("idle-timer-02")
    def test_nought_unloads_with_the_answer_and_pinned_never_does(self) -> None:
        models = {"a": facts(1, idle_timeout_s=0.0), "b": facts(1, idle_timeout_s=0.0, is_pinned=True)}
        bench = Bench(10, models=models)
        bench.post(Want(1, "a"), Want(2, "b"))
        bench.ready("a")
        bench.ready("b")
        assert bench.release("a") == [Stop("a", 1, reason="idle")]
        assert bench.release("b") == []
        assert bench.advance(1000.0) == []

    def test_one_that_was_only_loaded_waits_for_its_first_use(self) -> None:
        bench = Bench(10, models={"a": facts(1, idle_timeout_s=0.0)})
        bench.post(Want(1, "a", is_use=False))
        bench.ready("a")
        assert bench.post(LeaseEnded("a", 1, has_served=False, is_use=False)) == []
        bench.post(Want(2, "a"))
        assert stopped(bench.release("a")) == ["a"]

    def test_one_that_is_ready_and_was_never_asked_for_is_idle_since_then(self) -> None:
        bench = Bench(10, models={"a": facts(1, idle_timeout_s=5.0)})
        bench.post(Keep("a"))
        bench.ready("a")
        assert bench.advance(4.9) == []
        assert stopped(bench.advance(0.1)) == ["a"]
        # Kept, but it left for a reason that was not its own: it comes when it is asked for.
        assert bench.gone("a") == []
        assert bench.post(Want(1, "a")) == [Start("a", 2)]

    def test_one_timer_is_enough_for_many_leases(self) -> None:
        bench = Bench(10, models={"a": facts(1, idle_timeout_s=5.0)})
        bench.post(Want(1, "a"))
        bench.ready("a")
        before = bench.clock.num_timers
        for ticket in range(2, 100):
            bench.post(Want(ticket, "a"), LeaseEnded("a", 1))
        bench.release("a")
        assert bench.clock.num_timers == before + 1

    def test_a_time_out_may_be_changed_while_it_is_served(self) -> None:
        bench = Bench(10, models={"a": 1})
        bench.use("a")
        bench.effects.take()
        bench.post(AddModel("a", facts(1, idle_timeout_s=3.0)))
        assert stopped(bench.advance(3.0)) == ["a"]


class TestUnload:
    def test_it_waits_for_leases_and_who_comes_meanwhile_loads_it_again(self) -> None:
        bench = Bench(10, models={"a": 1})
        bench.post(Want(1, "a"))
        bench.ready("a")
        assert bench.post(Unload("a"), Want(2, "a")) == []
        assert bench.release("a") == [Stop("a", 1, reason="unload")]
        assert bench.gone("a") == [Start("a", 2)]
        assert bench.ready("a") == [Grant(2, "a", 2)]

    def test_an_unused_one_goes_at_once_and_a_kept_one_stays_away(self) -> None:
        bench = Bench(10, models={"a": facts(1, is_pinned=True)})
        bench.post(Keep("a"))
        bench.ready("a")
        assert bench.post(Unload("a")) == [Stop("a", 1, reason="unload")]
        assert bench.gone("a") == []
        assert bench.advance(1e6) == []
        assert bench.post(Want(1, "a")) == [Start("a", 2)]

    def test_a_load_that_somebody_waits_for_ends_before_it_is_undone(self) -> None:
        bench = Bench(10, models={"a": 1})
        bench.post(Want(1, "a"))
        assert bench.post(Unload("a")) == []
        assert bench.ready("a") == [Grant(1, "a", 1)]
        assert bench.release("a") == [Stop("a", 1, reason="unload")]

    def test_a_load_for_nobody_is_broken_off(self) -> None:
        bench = Bench(10, models={"a": 1})
        bench.post(Want(1, "a"), Unwant(1))
        bench.effects.take()
        assert bench.post(Unload("a")) == [Stop("a", 1, reason="unload")]
        bench.gone("a")
        assert bench.status("a") == "cold"

    def test_a_failure_is_forgotten(self) -> None:
        bench = Bench(10, models={"a": 1}, reload_delays_s=(3600.0,))
        bench.post(Want(1, "a"), WorkerEnded("a", 1, WorkerDied("gone")))
        bench.effects.take()
        bench.post(Unload("a"))
        assert bench.post(Want(2, "a")) == [Start("a", 2)]

    def test_its_memory_counts_as_on_its_way_back(self) -> None:
        bench = Bench(10, models={"a": 4, "b": 6, "c": 4})
        bench.use("b")
        bench.post(Want(11, "a"))
        bench.ready("a")
        bench.post(Unload("a"))
        bench.effects.take()
        assert bench.post(Want(12, "c")) == []
        assert bench.status("b") == "ready"
        bench.release("a")
        assert started(bench.gone("a")) == ["c"]


class TestComingAndGoing:
    def test_a_model_that_is_added_can_be_asked_for(self) -> None:
        bench = Bench(10, models={})
        bench.post(AddModel("a", facts(1)))
        assert bench.post(Want(1, "a")) == [Start("a", 1)]

    def test_one_that_is_not_there_is_denied(self) -> None:
        bench = Bench(10, models={})
        assert denied(bench.post(Want(1, "a"))) == [(1, ModelNotFound)]

    def test_a_removed_one_is_forgotten_with_its_last_lease(self) -> None:
        bench = Bench(10, models={"a": 1, "b": 1})
        bench.post(Want(1, "a"))
        bench.ready("a")
        assert bench.post(RemoveModel("a")) == []
        assert denied(bench.post(Want(2, "a"))) == [(2, ModelNotFound)]
        assert bench.release("a") == [Stop("a", 1, reason="removed")]
        assert bench.gone("a") == [Forget("a")]
        assert list(bench.pool.state.models) == ["b"]
        # News of it that come late change nothing.
        assert bench.post(LeaseEnded("a", 1), Unload("a"), Keep("a"), Measured("a", 1, {CPU: 1})) == []

    def test_who_waits_for_it_is_served_first(self) -> None:
        bench = Bench(10, models={"a": 1})
        bench.post(Want(1, "a"))
        assert bench.post(RemoveModel("a")) == []
        assert bench.ready("a") == [Grant(1, "a", 1)]
        assert bench.release("a") == [Stop("a", 1, reason="removed")]
        assert bench.gone("a") == [Forget("a")]

    @pytest.mark.parametrize("state", ["cold", "idle", "loading", "failed"])
    def test_an_unused_one_goes_at_once(self, state: str) -> None:
        bench = Bench(10, models={"a": 1}, reload_delays_s=(9.0,))
        if state == "idle":
            bench.use("a")
        if state == "loading":
            bench.post(Keep("a"))
        if state == "failed":
            bench.post(Want(1, "a"), WorkerEnded("a", 1, WorkerDied("gone")))
        bench.effects.take()
        effects = bench.post(RemoveModel("a"))
        if state in ("idle", "loading"):
            assert effects == [Stop("a", 1, reason="removed")]
            effects = bench.gone("a")
        assert effects == [Forget("a")]
        assert bench.advance(100.0) == []

    def test_many_that_are_down_come_and_go_without_a_look_at_all_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench, looks = Bench(10, models={"a": 1, "b": 1}), list[Step]()
        bench.use("a")
        monkeypatch.setattr(residency, "place", looks.append)
        bench.post(*(AddModel(name, ModelFacts()) for name in "cdef"))
        assert bench.post(*(RemoveModel(name) for name in "cdef")) == [Forget(name) for name in "cdef"]
        assert looks == []
        bench.post(RemoveModel("a"))
        assert len(looks) == 1

    def test_who_waits_for_a_removed_one_that_can_not_be_had_is_denied_and_it_is_forgotten(self) -> None:
        bench = Bench(models={"a": 1, "b": 1}, max_models=1)
        bench.post(Want(1, "a"))
        bench.ready("a")
        bench.post(Want(2, "b"), RemoveModel("b"))
        assert bench.post(Unwant(2)) == [Forget("b")]
