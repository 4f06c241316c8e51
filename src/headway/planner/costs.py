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


def size_text(num_bytes: int) -> str:
    """Bytes for people: 512 B, 1.5 MiB, 3.2 GiB."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
