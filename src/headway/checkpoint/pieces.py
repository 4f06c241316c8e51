"""Which rows of a file's tensor are a canonical one, for tensors that hold several: fused q, k and v, gate and up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.checkpoint.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` runs of `height` rows, `stride` rows apart; the first begins at `first`."""

    first: int
    height: int
    count: int = 1
    stride: int = 0

    @property
    def num_rows(self) -> int:
        """Rows that are meant."""
        return self.height * self.count

    @property
    def end(self) -> int:
        """One past the last of them."""
        return self.first + (self.count - 1) * self.stride + self.height

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """These rows of [num_rows, ...]: a view where they are one run, else a copy."""
        if self.count == 1:
            return values[self.first : self.end]
        index = (self.first + np.arange(self.count) * self.stride)[:, None] + np.arange(self.height)
        rows: npt.NDArray[Any] = values[index.reshape(-1)]
        return rows


@dataclass(frozen=True, slots=True)
class Piece:
    """A canonical tensor inside a file's tensor."""

    part: str
    """Its name in a layer, without .weight and .bias."""
    rows: Rows


Split = Callable[[ModelShape], tuple[Piece, ...]]
"""The pieces of a tensor of a model of this shape; together they are all of it."""


def stacked_qkv(shape: ModelShape) -> tuple[Piece, ...]:
    """q, k and v one under another."""
    q_rows, kv_rows = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return _stacked(("attn.q", q_rows), ("attn.k", kv_rows), ("attn.v", kv_rows))


def stacked_gate_up(shape: ModelShape) -> tuple[Piece, ...]:
    """gate above up."""
    return _stacked(("mlp.gate", shape.intermediate_size), ("mlp.up", shape.intermediate_size))


def qkv_by_head(shape: ModelShape) -> tuple[Piece, ...]:
    """Of each head its q, k and v; there are as many of each."""
    dim = shape.head_dim
    return tuple(
        Piece(f"attn.{part}", Rows(at * dim, dim, shape.num_heads, 3 * dim)) for at, part in enumerate(("q", "k", "v"))
    )


def _stacked(*heights: tuple[str, int]) -> tuple[Piece, ...]:
    pieces, first = [], 0
    for part, height in heights:
        pieces.append(Piece(part, Rows(first, height)))
        first += height
    return tuple(pieces)
