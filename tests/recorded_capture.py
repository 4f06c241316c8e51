"""RecordedCapture: what a CUDA graph does with a function, on the CPU.

The torch calls of one run are recorded with the very tensors that they read and wrote. A replay makes these calls
again, on these tensors, and runs no Python of the function. So whatever the function decided by the values of its
inputs while it was recorded stays as it was, and what it made reads and writes where it did: as with a graph. A call
that brings a value to the host is refused, as it is while a graph is captured.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

REFUSED = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select")
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[torch.Tensor]]


class RecordedCapture:
    """A torch_decode.Capture; counts what it captured."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replays = 0

    def __call__(self, body: Callable[[], None]) -> Callable[[], None]:
        recorder = _Recorder()
        with recorder:
            body()
        self.num_captured += 1

        def replay() -> None:
            self.num_replays += 1
            recorder.replay()

        return replay


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in REFUSED:
            raise RuntimeError(f"{func} brings a value to the host, or a shape that depends on one")
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, _tensors(made)))
        return made

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            read = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
            for old, new in zip(made, _tensors(func(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() not in read:  # no view, and not written in place
                    old.copy_(new)


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Those with memory that can be told: packed weights, which are only read, have none."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and not leaf.is_mkldnn]
