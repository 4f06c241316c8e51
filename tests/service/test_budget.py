"""What all residents may take: of the machine, of each GPU, and how many there may be."""

from typing import Any

import pytest

from headway.config import PoolConfig
from headway.errors import InvalidConfig
from headway.service.budget import make_budget
from headway.testing.fake_gpus import FakeGpus

GIB = 1 << 30


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"cpu": 8 * GIB, "cuda:0": 64 * GIB, "cuda:1": 32 * GIB}),
        ({"memory_limit": 3 * GIB}, {"cpu": 3 * GIB, "cuda:0": 64 * GIB, "cuda:1": 32 * GIB}),
        (
            {"memory_limit": 0.5, "gpu_memory_limit": 1.0, "max_models": 4},
            {"cpu": 5 * GIB, "cuda:0": 80 * GIB, "cuda:1": 40 * GIB, "models": 4},
        ),
    ],
)
def test_limits_are_bytes_or_fractions_of_each_memory(config: dict[str, Any], expected: dict[str, int]) -> None:
    gpus = FakeGpus(80 * GIB, 40 * GIB)
    assert make_budget(PoolConfig(**config), total_bytes=10 * GIB, gpus=gpus) == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"memory_limit": 11 * GIB}, rf"memory_limit is {11 * GIB} bytes \(11.0 GiB\).* has {10 * GIB}"),
        ({"memory_limit": 0}, "memory_limit is 0 bytes"),
        ({"memory_limit": 1.5}, "memory_limit is 1.5; a fraction is over 0 and at most 1"),
        ({"memory_limit": float("nan")}, "memory_limit is nan"),
        ({"gpu_memory_limit": 41 * GIB}, "gpu_memory_limit is .*GPU 1 has"),
        ({"max_models": 0}, "max_models is 0; it must be at least 1"),
    ],
)
def test_a_limit_that_can_not_be_is_refused_with_both_numbers(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        make_budget(PoolConfig(**config), total_bytes=10 * GIB, gpus=FakeGpus(80 * GIB, 40 * GIB))


def test_a_limit_for_gpus_is_refused_where_there_is_none() -> None:
    with pytest.raises(InvalidConfig, match=r"gpu_memory_limit is 0.5, and no GPU was found: leave it out"):
        make_budget(PoolConfig(gpu_memory_limit=0.5), total_bytes=10 * GIB, gpus=FakeGpus())


def test_one_that_does_not_tell_its_memory_is_bounded_by_what_the_caller_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gpus = FakeGpus(0, 40 * GIB)
    assert make_budget(PoolConfig(), total_bytes=10 * GIB, gpus=gpus) == {"cpu": 8 * GIB, "cuda:1": 32 * GIB}
    assert "GPU 0 does not tell its memory" in caplog.text
    told = make_budget(PoolConfig(gpu_memory_limit=5 * GIB), total_bytes=10 * GIB, gpus=gpus)
    assert told == {"cpu": 8 * GIB, "cuda:0": 5 * GIB, "cuda:1": 5 * GIB}
