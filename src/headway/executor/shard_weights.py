"""ShardWeights: the weights of one rank's Program, cut out of a checkpoint's as they are read."""

from collections.abc import Mapping

import numpy as np

from headway.checkpoint.raw import RawTensor
from headway.errors import InvariantBroken
from headway.executor.base import Float32, Weights
from headway.executor.shard import Range, WeightPart


class ShardWeights:
    """executor.base.Weights over those of the whole model.

    Each rank reads the file's tensor and keeps its part: at most one tensor is there whole at a time.
    """

    def __init__(self, weights: Weights, parts: Mapping[str, WeightPart]) -> None:
        self._weights, self._parts = weights, parts

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the parts, and of what is whole."""
        whole = dict(self._weights.shapes())
        return whole | {name: _cut_shape(whole[part.source], part) for name, part in self._parts.items()}

    def read(self, name: str) -> Float32:
        """The part of the tensor: a new array, or a read-only view of the file."""
        part = self._parts.get(name)
        if part is None:
            return self._weights.read(name)
        values = self._weights.read(part.source)
        if part.rows is not None:
            values = values[slice(*part.rows)]
        if part.columns is not None:
            values = values[..., slice(*part.columns)]
        return np.ascontiguousarray(values)

    def raw(self, name: str) -> RawTensor:
        """Of whole tensors only: executors that pack a file's blocks run whole models."""
        if name in self._parts:
            raise InvariantBroken(f"the bytes of a part of {name} were asked for: only read() cuts tensors")
        return self._weights.raw(name)

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        """Of whole tensors; a part's pages may be wanted by another part of the same."""
        if name not in self._parts:
            self._weights.release(name, rows)


def _cut_shape(shape: tuple[int, ...], part: WeightPart) -> tuple[int, ...]:
    first = _length(part.rows, shape[0])
    if len(shape) == 1:
        return (first,)
    return (first, *shape[1:-1], _length(part.columns, shape[-1]))


def _length(part: Range | None, whole: int) -> int:
    return whole if part is None else part[1] - part[0]
