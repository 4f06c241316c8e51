"""Padding: rows of a static batch whose sequences have ended, computed on until the batch ends."""

from collections.abc import Iterator

from headway.core.sequence import Sequence
from headway.core.step import StepPlan


class Padding:
    """Sequences that have ended; they keep their rows and blocks, which the scheduler takes back."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Those of now."""
        return tuple(self._sequences)

    @property
    def last(self) -> Sequence:
        """Who leaves first where blocks or rows are short; there must be one."""
        return self._sequences[-1]

    def add(self, sequence: Sequence) -> None:
        """From now on it computes the last token that it had computed again and again: that costs what going on would,
        and takes no block."""
        del sequence.token_ids[sequence.num_computed_tokens :]  # its last, and those that followed without a choice
        sequence.num_computed_tokens -= 1
        self._sequences.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It is computed no more."""
        self._sequences.remove(sequence)

    def join(self, plan: StepPlan) -> None:
        """Each computes a token beside the plan's streams: beside others only."""
        if plan.sequences:
            plan.padding = list(self._sequences)
            plan.sequences[plan.num_streams : plan.num_streams] = plan.padding
            plan.num_tokens[plan.num_streams : plan.num_streams] = [1] * len(plan.padding)
            plan.num_streams += len(plan.padding)
