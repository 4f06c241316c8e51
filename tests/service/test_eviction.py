"""Who leaves, by each policy: exact names, worked by hand."""

import random
from collections.abc import Mapping
from itertools import combinations

import pytest

from headway.config import EvictionPolicy
from headway.service.eviction import Candidate, Shortage, Victims, choose_victims

MB, GB = 10**6, 10**9
BUDGET = {"cpu": 10 * GB, "models": 100}
POLICIES: tuple[EvictionPolicy, ...] = ("lru", "lfu", "cost")


def candidate(
    name: str, size: int, *, used_at: float = 0.0, uses: int = 1, load_s: float = 1.0, **fields: float
) -> Candidate:
    return Candidate(name, {"cpu": size, "models": 1}, used_at, uses, load_s, **fields)


SMALL = candidate("small", 50 * MB, used_at=100.0, load_s=0.2)
LARGE = candidate("large", 5 * GB, used_at=50.0, load_s=30.0)


@pytest.mark.parametrize(("policy", "victim"), [("lru", "large"), ("cost", "small")])
def test_fifty_megabytes_of_a_fifth_of_a_second_against_five_gigabytes_of_thirty(
    policy: EvictionPolicy, victim: str
) -> None:
    found = choose_victims([SMALL, LARGE], {"cpu": 40 * MB}, policy, BUDGET)
    assert isinstance(found, Victims)
    assert found.models == (victim,)


def test_what_is_too_small_to_help_stays_though_it_is_worth_the_least() -> None:
    found = choose_victims([SMALL, LARGE], {"cpu": 4 * GB}, "cost", BUDGET)
    assert isinstance(found, Victims)
    assert found.models == ("large",)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_evicted_that_would_not_be_enough(policy: EvictionPolicy) -> None:
    found = choose_victims([SMALL, LARGE], {"cpu": 6 * GB}, policy, BUDGET)
    assert found == Shortage({"cpu": 6 * GB - 5 * GB - 50 * MB})


def test_lfu_takes_the_least_often_used_and_of_equals_the_longest_unused() -> None:
    models = [
        candidate("a", GB, used_at=3.0, uses=2),
        candidate("b", GB, used_at=2.0, uses=1),
        candidate("c", GB, used_at=1.0, uses=1),
    ]
    found = choose_victims(models, {"cpu": 2 * GB}, "lfu", BUDGET)
    assert isinstance(found, Victims)
    assert found.models == ("c", "b")


def test_greedy_dual_size_frequency_by_hand() -> None:
    # H = L + frequency x seconds / share: 0 + 4 x 2 / 0.2 = 40; 30 + 1 x 3 / 0.1 = 60; 0 + 1 x 5 / 0.1 = 50.
    models = [
        candidate("a", 2 * GB, uses=4, load_s=2.0),
        candidate("b", GB, uses=1, load_s=3.0, inflation=30.0),
        candidate("c", GB, uses=1, load_s=5.0),
    ]
    one = choose_victims(models, {"models": 1}, "cost", BUDGET)
    assert one == Victims(("a",), 40.0)
    two = choose_victims(models, {"models": 2}, "cost", BUDGET)
    assert two == Victims(("a", "c"), 50.0)


def test_a_place_is_the_share_that_counts_where_places_are_few() -> None:
    # Both take half of the places: the one whose load costs less goes, though it is small.
    found = choose_victims([SMALL, LARGE], {"models": 1}, "cost", {"cpu": 100 * GB, "models": 2})
    assert isinstance(found, Victims)
    assert found.models == ("small",)


def test_only_who_has_something_of_the_wanted_device_leaves() -> None:
    gpu = Candidate("gpu", {"cuda:0": GB, "cpu": GB, "models": 1}, 9.0, 1, 1.0)
    found = choose_victims([candidate("a", 2 * GB), gpu], {"cuda:0": GB}, "lru", {**BUDGET, "cuda:0": 2 * GB})
    assert isinstance(found, Victims)
    assert found.models == ("gpu",)


def freed(models: list[Candidate], names: tuple[str, ...]) -> Mapping[str, int]:
    return {key: sum(each.amounts[key] for each in models if each.model in names) for key in ("cpu", "models")}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_is_enough_and_has_nobody_needless(policy: EvictionPolicy) -> None:
    rng = random.Random(7)
    for _ in range(400):
        models = [
            candidate(
                f"m{index}",
                rng.randint(1, 9),
                used_at=rng.random(),
                uses=rng.randint(1, 5),
                load_s=rng.random(),
            )
            for index in range(rng.randint(1, 7))
        ]
        needed = {"cpu": rng.randint(1, 30), "models": rng.randint(1, 4)}
        found = choose_victims(models, needed, policy, {"cpu": 50, "models": 10})
        everybody = freed(models, tuple(each.model for each in models))
        assert isinstance(found, Victims) == all(everybody[key] >= needed[key] for key in needed)
        if isinstance(found, Victims):
            assert all(freed(models, found.models)[key] >= needed[key] for key in needed)
            for fewer in combinations(found.models, len(found.models) - 1):
                assert any(freed(models, fewer)[key] < needed[key] for key in needed)
