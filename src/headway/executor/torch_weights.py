"""Weights as tensors: converted one by one, so that loading needs the model and one tensor more."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headway.errors import TensorMismatch
from headway.executor.base import Float32, Weights

_CHUNK_ELEMENTS = 4 * 1024 * 1024


class WeightLoader:
    """Reads a checkpoint's tensors into `dtype` on `device`; a tensor that several ops use is read and held once."""

    def __init__(
        self, weights: Weights, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._weights, self._shapes, self._dtype, self._device = weights, shapes, dtype, device
        self._loaded: dict[tuple[str, ...], Tensor] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that the Program says."""
        return self._shapes[name]

    def load(self, name: str) -> Tensor:
        """One tensor, of the shape that the Program says. Raises TensorMismatch."""
        return self.load_joined((name,))

    def load_joined(self, names: Sequence[str]) -> Tensor:
        """Tensors one under another, [sum of rows, ...]."""
        key = tuple(names)
        if key not in self._loaded:
            self._loaded[key] = self._read(key)
        return self._loaded[key]

    def _read(self, names: tuple[str, ...]) -> Tensor:
        shapes = [self._shapes[name] for name in names]
        joined = torch.empty((sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=self._dtype)
        first_row = 0
        for name, shape in zip(names, shapes, strict=True):
            array = self._read_array(name)
            if len(names) == 1 and self._dtype == torch.float32 and _is_ours(array):
                return torch.from_numpy(array).to(self._device)
            _copy_rows(joined[first_row : first_row + shape[0]], array)
            first_row += shape[0]
        return joined.to(self._device)

    def _read_array(self, name: str) -> Float32:
        array, shape = self._weights.read(name), self._shapes[name]
        if array.shape != shape:
            raise TensorMismatch(f"tensor {name!r} is {list(array.shape)} in the checkpoint, must be {list(shape)}")
        return array


def _is_ours(array: Float32) -> bool:
    """Whether it may be kept as it is: writable, so new by the protocol of Weights, and no part of a larger one."""
    whole = array.nbytes if array.base is None else getattr(array.base, "nbytes", None)
    return array.flags.writeable and whole == array.nbytes


def _copy_rows(target: Tensor, array: Float32) -> None:
    """array into target, some rows at a time: torch takes no read-only array, and a whole copy would be one more."""
    rows = max(1, _CHUNK_ELEMENTS * len(array) // max(1, array.size))
    for first in range(0, len(array), rows):
        part = array[first : first + rows]
        writable = part if part.flags.writeable else np.array(part)
        target[first : first + rows].copy_(torch.from_numpy(writable))
