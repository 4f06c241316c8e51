"""A checkpoint's tensors under canonical names: each is a view (rows, the order of rows) of a tensor in a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


class TensorFile(Protocol):
    """What an open file offers: GgufFile and SafetensorsFile."""

    def read(self, name: str) -> Float32:
        """One tensor, by the file's own name."""
        ...


@dataclass(frozen=True, slots=True)
class WeightView:
    """One canonical tensor: where it is and what must be done to it."""

    file: TensorFile
    name: str
    """In the file."""
    shape: tuple[int, ...]
    """Of the view."""
    rows: tuple[int, int] | None = None
    """The part of the first dimension that is meant; None: all of it."""
    interleaved_heads: int | None = None
    """The rows are those of so many heads, with the two halves of a head interleaved (GGUF's q and k): undo it."""


class MappedWeights:
    """Reads one tensor at a time. Thread-safe: it has no state but the mapped files."""

    def __init__(self, views: Mapping[str, WeightView]) -> None:
        self._views = dict(views)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is, by its canonical name; one that has none stands under the file's name."""
        return {name: view.shape for name, view in self._views.items()}

    def read(self, name: str) -> Float32:
        """The tensor as float32, C-contiguous: a new array, or a read-only view of the file. KeyError if not there."""
        view = self._views[name]
        values = view.file.read(view.name)
        if view.rows is not None:
            values = values[view.rows[0] : view.rows[1]]
        if view.interleaved_heads is not None:
            values = deinterleave_heads(values, view.interleaved_heads)
        return np.ascontiguousarray(values).reshape(view.shape)


class ZeroFilledWeights:
    """Weights of which only those that fit a program are there, and the rest reads as zeros (`--non-strict`)."""

    def __init__(self, wanted: Mapping[str, tuple[int, ...]], weights: MappedWeights) -> None:
        self._wanted = dict(wanted)
        self._weights = weights
        self._there = weights.shapes()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Exactly what the program wants."""
        return self._wanted

    def read(self, name: str) -> Float32:
        """The checkpoint's tensor where it has the wanted shape, else zeros."""
        if self._there.get(name) == self._wanted[name]:
            return self._weights.read(name)
        return np.zeros(self._wanted[name], np.float32)


def deinterleave_heads(values: Float32, num_heads: int) -> Float32:
    """Rows as Hugging Face has them from rows as llama.cpp's converter leaves them.

    Of a head with rows r0 r1 r2 r3 (halves r0 r1 | r2 r3) the converter writes r0 r2 r1 r3, so that the numbers that
    are rotated together are neighbours. `values`: [num_heads * head_dim, ...].
    """
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
