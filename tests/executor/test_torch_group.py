"""Ranks over torch.distributed: here each is a thread with a group of its own, and gloo talks over the loopback."""

from pathlib import Path

import pytest
import torch

from headway.executor.meeting import Meeting
from headway.executor.torch_group import DistGroup
from ranks_of_threads import run_ranks

CPU = torch.device("cpu")


def test_each_rank_gets_the_sum_and_all_columns_in_the_order_of_ranks(tmp_path: Path) -> None:
    def act(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        group = DistGroup(Meeting(tmp_path / "meeting", rank, 3), CPU)
        total = torch.full((2, 3), float(10**rank))
        group.all_reduce(total)
        widths = (3, 2, 2)
        columns = torch.full((2, widths[rank]), float(rank), dtype=torch.bfloat16)
        nothing = group.all_gather(torch.zeros(0, widths[rank]), widths)
        return total, group.all_gather(columns, widths), nothing

    for total, columns, nothing in run_ranks(3, act):
        assert total.tolist() == [[111.0] * 3] * 2
        assert columns.dtype == torch.bfloat16
        assert columns.tolist() == [[0, 0, 0, 1, 1, 2, 2]] * 2
        assert nothing.shape == (0, 7)


def test_ranks_that_do_not_come_are_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        DistGroup(Meeting(tmp_path / "meeting", 0, 2, timeout_s=0.2), CPU)


def test_a_rank_that_falls_silent_is_an_error_to_the_others(tmp_path: Path) -> None:
    def act(rank: int) -> DistGroup:
        return DistGroup(Meeting(tmp_path / "meeting", rank, 2, timeout_s=0.5), CPU)

    group, silent = run_ranks(2, act)
    with pytest.raises(RuntimeError):
        group.all_reduce(torch.zeros(2, 2))
    assert silent.size == 2
