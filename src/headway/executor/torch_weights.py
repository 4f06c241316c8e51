"""Weights as tensors: converted one by one, so that loading needs the model and one tensor more.

The products over them are chosen here. oneDNN can pack a weight once, in the layout of the machine's multiplier, by the
entry points that torch's own compiler uses; torch's linear (MKL in float32) packs it anew at each call. All products of
a 135M model on two cores of AVX2, packed against not: 1.5 x the speed at 1 row, 1.7 x at 8, 1.4 x at 64, 1.0 x at 512.
In float32 only the last product is packed: oneDNN adds up in another order, and through thirty layers that is the
difference between 0.9e-4 and 1.2e-4 from transformers' logits.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.errors import TensorMismatch
from headway.executor.base import Float32, Weights
from headway.executor.torch_staging import PinnedRows, chunk_rows

Product = Callable[[Tensor], Tensor]


class WeightLoader:
    """Reads a checkpoint's tensors into `dtype` on `device`; a tensor that several ops use is read and held once."""

    def __init__(
        self, weights: Weights, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._weights, self._shapes, self._dtype, self._device = weights, shapes, dtype, device
        self._loaded: dict[tuple[str, ...], Tensor] = {}
        self._copy = _copy_rows if device.type == "cpu" else PinnedRows(dtype, device).copy

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

    def product(self, names: Sequence[str], bias: Tensor | None = None, *, is_last: bool = False) -> Product:
        """value -> value @ weight.T + bias for tensors one under another; a new contiguous tensor.

        A weight that nothing else has asked for is not held beside its packed form.

        Args:
            is_last: its result goes into no other product.
        """
        key = tuple(names)
        weight = self._loaded[key] if key in self._loaded else self._read(key)
        if self._device.type == "cpu" and (is_last or self._dtype != torch.float32) and _packs(self._dtype):
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            multiply = torch.ops.mkldnn._linear_pointwise.default
            return lambda value: multiply(value, packed, bias, "none", [], None)
        self._loaded[key] = weight
        if self._device.type != "cpu" or self._dtype != torch.float32:
            return lambda value: functional.linear(value, weight, bias)
        return lambda value: _product(value, weight, bias)

    def _read(self, names: tuple[str, ...]) -> Tensor:
        shapes = [self._shapes[name] for name in names]
        size = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        joined = torch.empty(size, dtype=self._dtype, device=self._device)
        first_row = 0
        for name, shape in zip(names, shapes, strict=True):
            array = self._read_array(name)
            if len(names) == 1 and self._dtype == torch.float32 and self._device.type == "cpu" and _is_ours(array):
                return torch.from_numpy(array)
            self._copy(joined[first_row : first_row + shape[0]], array)
            first_row += shape[0]
        return joined

    def _read_array(self, name: str) -> Float32:
        array, shape = self._weights.read(name), self._shapes[name]
        if array.shape != shape:
            raise TensorMismatch(f"tensor {name!r} is {list(array.shape)} in the checkpoint, must be {list(shape)}")
        return array


def _product(value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # MKL repacks the right factor of a product. For few rows that costs more than the product itself, so weights stand
    # on the left: half the time at 2 to 4 rows, four fifths at 8, and more time at 12.
    if not 2 <= value.shape[0] <= 8:
        return functional.linear(value, weight, bias)
    out = torch.mm(weight, value.t()).t().contiguous()
    return out if bias is None else out.add_(bias)


@functools.cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs and multiplies this type here, tried on a small one: it says no by an error."""
    try:
        weight, value = torch.zeros(16, 16, dtype=dtype), torch.zeros(2, 16, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        torch.ops.mkldnn._linear_pointwise.default(value, packed, None, "none", [], None)
    except (AttributeError, RuntimeError):
        return False
    return True


def _is_ours(array: Float32) -> bool:
    """Whether it may be kept as it is: writable, so new by the protocol of Weights, and no part of a larger one."""
    whole = array.nbytes if array.base is None else getattr(array.base, "nbytes", None)
    return array.flags.writeable and whole == array.nbytes


def _copy_rows(target: Tensor, array: Float32) -> None:
    """array into target, some rows at a time: torch takes no read-only array, and a whole copy would be one more."""
    rows = chunk_rows(array)
    for first in range(0, len(array), rows):
        part = array[first : first + rows]
        writable = part if part.flags.writeable else np.array(part)
        target[first : first + rows].copy_(torch.from_numpy(writable))
