"""A morning of the benchmark's trace: what the policies are for shows already there (days: benchmarks/eviction.py)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "eviction.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_eviction", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [1, 2])
def test_cost_waits_less_and_hits_more_than_lru(benchmark: ModuleType, seed: int) -> None:
    found = {policy: benchmark.run(policy, seed, 0.4) for policy in ("lru", "cost")}
    assert found["cost"].mean_wait_s < 0.8 * found["lru"].mean_wait_s
    assert found["cost"].hit_rate > found["lru"].hit_rate
    assert found["cost"].num_loads < found["lru"].num_loads
