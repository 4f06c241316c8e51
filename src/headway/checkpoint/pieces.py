"""Which rows of a file's tensor are a canonical one, for tensors that hold several: fused q, k and v, gate and up."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.checkpoint.shape import ModelShape
from headway.errors import CorruptCheckpoint


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
    shape: tuple[int, ...] | None = None
    """Of the canonical tensor; None: these rows of the file's."""
    turned_heads: int | None = None
    """As WeightView's."""

    def shape_in(self, whole: tuple[int, ...], where: str) -> tuple[int, ...]:
        """The canonical tensor's shape, for a tensor of the shape `whole`. Raises CorruptCheckpoint."""
        rows = (self.rows.num_rows, *whole[1:])
        if self.shape is None:
            return rows
        if prod(self.shape) != prod(rows):
            raise CorruptCheckpoint(f"{where} has the shape {whole}: {self.part} of it is not {self.shape}")
        return self.shape


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


def stacked_experts(part: str) -> Split:
    """One of the three matrices, of all experts one under another: [experts, rows, columns]."""

    def split(shape: ModelShape) -> tuple[Piece, ...]:
        if shape.experts is None:
            return ()
        sizes = shape.experts.width, shape.hidden_size
        sizes = sizes[::-1] if part == "down" else sizes
        return tuple(Piece(f"mlp.experts.{e}.{part}", Rows(e, 1), sizes) for e in range(shape.experts.num_experts))

    return split


def latent_and_rope(shape: ModelShape) -> tuple[Piece, ...]:
    """The latent above the key's columns with positions."""
    return (
        ()
        if shape.latent is None
        else _stacked(("attn.latent", shape.latent.kv_rank), ("attn.k_rope", shape.latent.rope_dim))
    )


def key_and_value_up(shape: ModelShape) -> tuple[Piece, ...]:
    """Of each head what makes its key of the latent, then what makes its value."""
    latent, heads = shape.latent, shape.num_heads
    if latent is None:
        return ()
    stride = latent.nope_dim + latent.v_dim
    keys, values = (heads, latent.kv_rank, latent.nope_dim), (heads, latent.v_dim, latent.kv_rank)
    return (
        Piece("attn.k_up", Rows(0, latent.nope_dim, heads, stride), keys, turned_heads=heads),
        Piece("attn.v_up", Rows(latent.nope_dim, latent.v_dim, heads, stride), values),
    )


def _stacked(*heights: tuple[str, int]) -> tuple[Piece, ...]:
    pieces, first = [], 0
    for part, height in heights:
        pieces.append(Piece(part, Rows(first, height)))
        first += height
    return tuple(pieces)
