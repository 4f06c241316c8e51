"""A group of ranks in one process: each is a thread, and they meet at a barrier."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WAIT_S = 30.0


class ThreadGroup:
    """executor.torch_group.Group of one thread."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list[Tensor | None]) -> None:
        self.rank, self.size = rank, size
        self.num_calls = 0
        self._barrier, self._board = barrier, board

    def all_reduce(self, value: Tensor) -> None:
        assert value.dtype == torch.float32
        assert value.is_contiguous()
        total = torch.stack(self._show(value.clone())).sum(0)
        value.copy_(total)

    def all_gather(self, value: Tensor, widths: Sequence[int]) -> Tensor:
        parts = self._show(value)
        assert [part.shape[1] for part in parts] == list(widths)
        return torch.cat(parts, dim=1)

    def _show(self, value: Tensor) -> list[Tensor]:
        self.num_calls += 1
        self._board[self.rank] = value
        self._barrier.wait(WAIT_S)
        shown = [part for part in self._board if part is not None]
        self._barrier.wait(WAIT_S)
        return shown


def make_groups(size: int) -> list[ThreadGroup]:
    barrier, board = threading.Barrier(size), [None] * size
    return [ThreadGroup(rank, size, barrier, board) for rank in range(size)]


def run_ranks(size: int, of_rank: Callable[[int], T]) -> list[T]:
    """What each rank gives, all running at once."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(of_rank, range(size)))
