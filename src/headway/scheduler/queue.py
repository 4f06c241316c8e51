"""Queue: sequences in the order of a policy's key. One holds those that wait, one those that run."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise

from headway.core.sequence import Sequence
from headway.errors import InvariantBroken
from headway.scheduler.policy import OrderKey


class Queue:
    """A sorted list: adding at the end and taking from the front are cheap, anywhere else a memory move."""

    def __init__(self, order: OrderKey) -> None:
        self.items: list[Sequence] = []
        """In order; not to be written from outside."""
        self._order = order

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.items)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence in its place."""
        insort(self.items, sequence, key=self._order)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out. Raises InvariantBroken if it is not there."""
        index = bisect_left(self.items, self._order(sequence), key=self._order)
        if index >= len(self.items) or self.items[index] is not sequence:
            raise InvariantBroken(f"request {sequence.request_id} choice {sequence.choice} is not in its queue")
        del self.items[index]

    def check(self) -> None:
        """Raises InvariantBroken unless it is in order, each sequence once."""
        keys = [self._order(sequence) for sequence in self.items]
        if any(first >= second for first, second in pairwise(keys)):
            raise InvariantBroken("a queue is out of order")
