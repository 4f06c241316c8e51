"""The words of what the pool denies: each names the value, the limit and what to do."""

from collections.abc import Mapping

from headway.errors import HeadwayError, ModelNotFound, ModelNotReady, OutOfMemory, QueueFull, ShuttingDown
from headway.observe.sizes import size_text
from headway.service.events import CPU, MODELS, Amounts
from headway.service.pool_state import Residency


def shutting_down() -> HeadwayError:
    """Nothing new is taken."""
    return ShuttingDown("the server is shutting down and takes no new requests: try another one")


def removed(model: str) -> HeadwayError:
    """It was there a moment ago."""
    return ModelNotFound(f"model {model} was removed", param="model")


def not_ready(model: str, residency: Residency, now: float) -> HeadwayError:
    """It failed, and is not started again before its back-off is over."""
    seconds = residency.retry_at - now
    reason = residency.error.message if residency.error else "unknown"
    return ModelNotReady(
        f"model {model} is not ready; it is started again in {seconds:.0f} s. It failed last because: {reason}",
        retry_after_s=seconds,
    )


def queue_full(model: str, max_queued: int) -> HeadwayError:
    """As many wait as may."""
    return QueueFull(
        f"{max_queued} requests wait for a model already, as many as may (--max-queued-requests): try model {model} "
        "again later",
        retry_after_s=1.0,
    )


def load_timeout(model: str, timeout_s: float) -> HeadwayError:
    """Its load was stopped."""
    return ModelNotReady(
        f"model {model} was not ready after {timeout_s:g} s (load_timeout_s): it was stopped", retry_after_s=timeout_s
    )


def queue_timeout(model: str, residency: Residency, timeout_s: float) -> HeadwayError:
    """A ticket waited for as long as it may."""
    why = {
        "fetching": "its files are being looked for",
        "loading": "it is being loaded",
        "stopping": "it is being unloaded, and loaded again then",
    }.get(residency.status, "models that are in use hold the memory that it needs")
    return ModelNotReady(
        f"model {model} was not ready within {timeout_s:g} s (--queue-timeout): {why}; try again later",
        retry_after_s=max(1.0, residency.load_s),
    )


def too_large(model: str, needed: Amounts, budget: Amounts) -> HeadwayError:
    """Alone it takes more than there may be taken."""
    device = next(name for name, amount in needed.items() if amount > budget.get(name, amount))
    limit = budget[device]
    return OutOfMemory(
        f"model {model} needs {size_text(needed[device])} ({needed[device]} bytes) of {_memory(device)}, and all "
        f"models together may take {size_text(limit)} ({limit} bytes): {_raise_it(device)}, or take a smaller model"
    )


def pinned_in_the_way(
    model: str, needed: Amounts, budget: Amounts, pinned: Mapping[str, Amounts], held: Amounts
) -> HeadwayError:
    """What is pinned leaves too little, and is never evicted. `held`: what all of it takes."""
    device = next(name for name, amount in needed.items() if amount > budget.get(name, amount) - held.get(name, 0))
    names = ", ".join(name for name, amounts in pinned.items() if amounts.get(device, 0))
    if device == MODELS:
        limit = f"{budget[device]} models may be resident (--max-models)"
        return ModelNotReady(
            f"model {model} has no place: {limit}, and these are pinned: {names}. Unpin one, or raise the limit"
        )
    left = max(0, budget[device] - held.get(device, 0))
    return ModelNotReady(
        f"model {model} needs {size_text(needed[device])} ({needed[device]} bytes) of {_memory(device)}; of "
        f"{size_text(budget[device])} ({budget[device]} bytes) pinned models leave {size_text(left)} ({left} bytes): "
        f"{names}. Unpin one, or {_raise_it(device)}"
    )


def _memory(device: str) -> str:
    return "memory" if device == CPU else f"the memory of {device}"


def _raise_it(device: str) -> str:
    return "raise --memory-limit" if device == CPU else "raise --gpu-memory-limit"
