"""What goes first, and who gives way: pure functions over sequences. Another order (priority, shortest first, fair
shares) is another key here; the scheduler's loop does not know which one it has."""

from collections.abc import Callable
from collections.abc import Sequence as Items

from headway.core.sequence import Sequence

OrderKey = Callable[[Sequence], tuple[int, ...]]
"""Smallest first. Total (no two sequences alike) and constant while a sequence lives."""


def arrival_order(sequence: Sequence) -> tuple[int, ...]:
    """First come, first served. A preempted sequence keeps its place."""
    return (sequence.arrival,)


def choose_victim(
    running: Items[Sequence], planned: Items[Sequence], sequence: Sequence, order: OrderKey
) -> Sequence | None:
    """Whom to preempt so that `sequence` gets a block; None: nobody, it waits for those of the plan to end.

    `running` is in order. Never one of the plan, and never one that goes before `sequence` unless it is held: so the
    first that is not held always gets on, and two sequences cannot take each other's blocks in turn.

    1. The last of those that are held: they would not use their blocks now.
    2. The last of those behind `sequence`.
    """
    taken = set(planned)
    for candidate in reversed(running):  # 1
        if candidate.is_held and candidate is not sequence and candidate not in taken:
            return candidate
    for candidate in reversed(running):  # 2
        if order(candidate) <= order(sequence):
            return None
        if candidate not in taken:
            return candidate
    return None
