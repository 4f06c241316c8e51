"""A served model as the admin routes tell it."""

from collections.abc import Mapping
from typing import Any

from headway.service.protocol import ModelCard

_UPSTREAM_STATES = ("closed", "half_open", "open")


def describe_upstream(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Of a model that another server computes: its circuit breaker. Of others, and before the first load, nothing.

    Args:
        numbers: the model's, as the service's stats() tell them.
    """
    state = numbers.get("upstream_state")
    return {} if state is None else {"upstream": {"breaker": _UPSTREAM_STATES[int(state)]}}


def describe(card: ModelCard) -> dict[str, Any]:
    """All that is known of it now."""
    return {
        "id": card.id,
        "model": card.model or card.id,
        "kind": card.kind,
        "version": card.version,
        "state": card.state,
        "type": card.type,
        "framework": card.framework,
        "task": card.info.get("task", "generate") if card.info and "platform" not in card.info else None,
        "max_model_len": card.max_model_len,
        "root": card.root,
        "description": card.description,
        "memory_bytes": card.num_bytes,
        "over_limit_bytes": card.over_limit_bytes,
        "leases": card.num_leases,
        "is_pinned": card.is_pinned,
        "phases": [{"phase": phase, "seconds": seconds} for phase, seconds in card.phases],
        "error": None if card.error is None else card.error.message,
        "retry_after_s": card.retry_at_s,
        "update_error": None if card.update_error is None else card.update_error.message,
    }
