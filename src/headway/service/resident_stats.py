"""The numbers of residency, as Service.stats() tells them and observe/pool_families.py shows them."""

from collections.abc import Mapping, Sequence

from headway.service.pool import Pool
from headway.service.pool_state import Residency, total
from headway.service.served_model import ServedModel
from headway.worker.spares import Spares

GAUGES = ("num_running", "num_waiting", "client_open_requests")
"""Of a worker: 0 where there is none."""


def model_stats(model: ServedModel, residency: Residency, devices: Sequence[str]) -> dict[str, float]:
    """Gauges of its worker, counters over all its workers, and what the pool knows of it."""
    now = model.client.stats() if model.client is not None else dict.fromkeys(GAUGES, 0.0)
    return {
        **now,
        **add_totals(now, model.totals),
        "is_resident": float(residency.status == "ready"),
        "charged_bytes": float(sum(residency.charged.get(device, 0) for device in devices)),
        "measured_bytes": float(sum(residency.measured.values())) if residency.charged else 0.0,
        "model_leases": float(residency.num_leases),
        "loads_total": float(residency.num_loads),
        **{f"stops_{reason}_total": float(count) for reason, count in residency.stops.items()},
        **{f"load_{phase}_seconds_total": seconds for phase, seconds in model.load_seconds.items()},
        **model.waits.values(),
    }


def pool_stats(pool: Pool, devices: Sequence[str], spares: Spares | None = None) -> dict[str, float]:
    """Of all models together, and of processes that wait for one."""
    state, charged, over = pool.state, pool.charged, over_limit(pool)
    statuses = [residency.status for residency in state.models.values()]
    return {
        "waiting_requests": float(len(state.waiting)),
        "leases": float(pool.num_leases),
        "models": float(len(statuses)),
        "residents": float(statuses.count("ready")),
        "loading_models": float(statuses.count("loading")),
        "waiting_spares": 0.0 if spares is None else float(spares.num_waiting),
        "spare_bytes": 0.0 if spares is None else float(spares.num_bytes(0)),
        "worker_starts_total": float(state.num_starts),
        "worker_restarts_total": float(state.num_restarts),
        "worker_failures_total": float(state.num_failures),
        **{f"limit_bytes_{device}": float(pool.rules.budget[device]) for device in devices},
        **{f"charged_bytes_{device}": float(charged.get(device, 0)) for device in devices},
        **{f"over_limit_bytes_{device}": float(over.get(device, 0)) for device in devices},
    }


def over_limit(pool: Pool) -> dict[str, int]:
    """By resource: what residents are charged with over the budget, those left out that are on their way out. Grown
    ones are evicted for it, but those that are used, pinned or alone stay."""
    staying = total(each.charged for each in pool.state.models.values() if not each.comes_free)
    return {name: staying[name] - limit for name, limit in pool.rules.budget.items() if staying.get(name, 0) > limit}


def add_totals(stats: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    """The counters of `stats`, each with what it had before."""
    names = {name for name in stats if name.endswith("_total")} | earlier.keys()
    return {name: stats.get(name, 0.0) + earlier.get(name, 0.0) for name in names}
