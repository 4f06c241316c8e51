"""Queue: sequences in the order of their places (Sequence.order). One holds those that wait, one those that run."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

from headway.core.sequence import Sequence
from headway.errors import InvariantBroken

_order = attrgetter("order")


class Queue:
    """A sorted list: adding at the end and taking from the front are cheap, anywhere else a memory move.

    A sequence's place must not change while it is in here.
    """

    def __init__(self) -> None:
        self.items: list[Sequence] = []
        """In order; not to be written from outside."""

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.items)

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence in its place."""
        insort(self.items, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out. Raises InvariantBroken if it is not there."""
        index = bisect_left(self.items, sequence.order, key=_order)
        if index >= len(self.items) or self.items[index] is not sequence:
            raise InvariantBroken(f"request {sequence.request_id} choice {sequence.choice} is not in its queue")
        del self.items[index]

    def check(self) -> None:
        """Raises InvariantBroken unless it is in order, each sequence once."""
        if any(first.order >= second.order for first, second in pairwise(self.items)):
            raise InvariantBroken("a queue is out of order")
