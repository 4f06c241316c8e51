"""Costs: what an executor makes of a Program, in bytes. The planner divides the memory by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one model on one executor. Bytes are upper bounds."""

    dtype: str
    """What most bytes of the weights are held in: a number type, or a run form."""
    weights_text: str
    """What all of them are held in, for people."""
    weights_bytes: int
    workspace_bytes: int
    """The most that a step holds beside weights and KV."""
    kv_dtype: str
    kv_bytes_per_token: int
