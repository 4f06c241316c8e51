"""Group: what ranks that compute one model together do with each other's values: add them up, put them side by side."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """The ranks, as one of them sees them. All call the same in the same order, and each waits for the others."""

    rank: int
    size: int

    def all_reduce(self, value: Tensor) -> None:
        """Overwrites `value`, contiguous and float32, with the sum of all ranks'."""
        ...

    def all_gather(self, value: Tensor, widths: Sequence[int]) -> Tensor:
        """[rows, sum of widths] of each rank's [rows, width]."""
        ...
