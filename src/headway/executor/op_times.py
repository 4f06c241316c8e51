"""What executors tell of their ops' times, and the names that they tell them under."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from headway.executor.fuse import GatedLinear, PlanOp, outs_of


@dataclass(frozen=True, slots=True)
class OpTime:
    """One op, or what was fused to one, of one step."""

    name: str
    """The kinds of its ops: Norm+Rope."""
    values: str
    """What they made."""
    begin_ns: int
    """time.monotonic_ns()."""
    end_ns: int


@runtime_checkable
class TimedExecutor(Protocol):
    """An executor that can note when its ops run."""

    def time_ops(self, is_on: bool) -> None:
        """Whether steps note it."""
        ...

    def op_times(self) -> list[OpTime]:
        """Of the last step, in order; empty where steps do not note it."""
        ...


Label = tuple[str, str]
"""name and values of an OpTime."""


def label(parts: Iterable[tuple[str, Sequence[str]]]) -> Label:
    """Of parts that run as one: the kind and the values of each."""
    kinds: list[str] = []
    values: dict[str, None] = {}
    for kind, made in parts:
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
        values |= dict.fromkeys(made)
    return "+".join(kinds), ", ".join(values)


def part_of(op: PlanOp | GatedLinear) -> tuple[str, Sequence[str]]:
    """An op that runs whole, as label() takes it."""
    return type(op).__name__, outs_of(op)


def between(labels: Iterable[Label], times_ns: Sequence[int]) -> list[OpTime]:
    """An OpTime of each label: from its own time to the next one's. There is one time more than labels."""
    return [OpTime(*named, *span) for named, span in zip(labels, pairwise(times_ns), strict=True)]
