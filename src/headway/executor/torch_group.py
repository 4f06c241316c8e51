"""DistGroup: a Group over torch.distributed, gloo between processes of one machine, NCCL between its GPUs.

gloo talks over TCP on 127.0.0.1 alone. Nothing that is received is unpickled: tensors of a known size, and no objects.
No default group is made, so that a process may have one after the other.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from headway.executor.meeting import Meeting


class DistGroup:
    """A Group over torch.distributed. Waits for the others at most meeting.timeout_s.

    Args:
        meeting: with which others.
        device: what the values are on.

    Raises:
        RuntimeError: the others did not come; later, from any call: one of them is gone, or silent.
    """

    def __init__(self, meeting: Meeting, device: torch.device) -> None:
        self.rank, self.size = meeting.rank, meeting.size
        timeout = timedelta(seconds=meeting.timeout_s)
        self._store = c10d.FileStore(str(meeting.path), meeting.size)
        self._store.set_timeout(timeout)
        make = _make_nccl if device.type == "cuda" else _make_gloo
        self._ranks = make(self._store, meeting.rank, meeting.size, timeout)

    def all_reduce(self, value: Tensor) -> None:
        """See Group."""
        self._ranks.allreduce([value]).wait()

    def all_gather(self, value: Tensor, widths: Sequence[int]) -> Tensor:
        """See Group. Parts of different widths travel as the widest."""
        widest, rows = max(widths), value.shape[0]
        own = value.contiguous() if value.shape[1] == widest else value.new_zeros(rows, widest)
        if value.shape[1] != widest:
            own[:, : value.shape[1]] = value
        parts = [torch.empty_like(own) for _ in widths]
        # As bytes: not every backend knows every number type.
        self._ranks.allgather([[part.view(torch.uint8) for part in parts]], [own.view(torch.uint8)]).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)


def _make_gloo(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options: Any = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return c10d.ProcessGroupGloo(store, rank, size, options)


def _make_nccl(store: c10d.Store, rank: int, size: int, timeout: timedelta) -> Any:
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return c10d.ProcessGroupNCCL(store, rank, size, options)
