"""The ops of a rank with torch: sums over all ranks, columns of all ranks, some columns of a value."""

from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import InvariantBroken
from headway.executor.torch_ranks import Group
from headway.model.ops import AllGather, AllReduce, Columns


def make_shared(op: AllReduce | AllGather | Columns, group: Group | None) -> Callable[[Tensor], Tensor]:
    """The function of the op; what it reads is not overwritten."""
    if isinstance(op, Columns):
        first, width = op.first, op.width
        return lambda value: value.narrow(1, first, width).contiguous()
    if group is None:
        raise InvariantBroken(f"{op.out} needs the other ranks' values, and there is no group of ranks")
    if isinstance(op, AllGather):
        parts = op.parts
        return lambda value: group.all_gather(value, parts)

    def reduce(value: Tensor) -> Tensor:
        total = value.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        group.all_reduce(total)
        return total.to(value.dtype)

    return reduce
