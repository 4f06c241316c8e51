"""An encoder's attention and pooling with torch: whole sequences, each token sees all others of its own, no cache.

Sequences whose lengths round up to the same power of two attend in one call, padded to the longest among them, so that
the number of calls does not grow with the number of sequences.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.executor.base import Int64
from headway.model.ops import Attention, Pool
from headway.planner.limits import MAX_ATTENTION_SCORES

_LEAST_LENGTH = 16
"""Sequences are grouped as if they were at least so long."""


@dataclass(frozen=True, slots=True)
class Padded:
    """Sequences that attend in one call."""

    rows: Tensor  # [num_seqs, length], each place's token; past a sequence's end its last one, whose result is void
    mask: Tensor | None  # [num_seqs, 1, 1, length], added to the scores; None: all are of one length


class Sequences:
    """The sequences of one step, grouped by length. `starts`: [num_seqs + 1]."""

    def __init__(self, starts: Int64, dtype: torch.dtype, device: torch.device) -> None:
        self.lengths = np.diff(starts)
        self.firsts = starts[:-1]
        self.device = device
        classes = 1 << np.ceil(np.log2(np.maximum(self.lengths, _LEAST_LENGTH))).astype(np.int64)
        self.groups = [
            self._pad(members[first : first + at_once], dtype)
            for size in np.unique(classes).tolist()
            for members in [np.flatnonzero(classes == size)]
            for at_once in [max(1, MAX_ATTENTION_SCORES // (size * size))]
            for first in range(0, members.size, at_once)
        ]
        self.scatter = self._make_scatter(int(starts[-1]))

    def _pad(self, members: Int64, dtype: torch.dtype) -> Padded:
        lengths = self.lengths[members]
        places = np.arange(int(lengths.max()))
        rows = self.firsts[members][:, None] + np.minimum(places[None, :], lengths[:, None] - 1)
        mask = None
        if (lengths != lengths.max()).any():
            is_past = torch.from_numpy(places[None, :] >= lengths[:, None]).to(self.device)
            mask = torch.zeros(is_past.shape, dtype=dtype, device=self.device)
            mask = mask.masked_fill_(is_past, -torch.inf)[:, None, None, :]
        return Padded(torch.from_numpy(rows).to(self.device), mask)

    def _make_scatter(self, num_tokens: int) -> Tensor:
        """The row of each token among those of all groups; the first of them: those that repeat are padding."""
        rows = np.concatenate([group.rows.cpu().numpy().reshape(-1) for group in self.groups])
        scatter = np.empty(num_tokens, np.int64)
        scatter[rows[::-1]] = np.arange(rows.size)[::-1]
        return torch.from_numpy(scatter).to(self.device)


def attend_whole(op: Attention, q: Tensor, k: Tensor, v: Tensor, sequences: Sequences) -> Tensor:
    """softmax(q k^T * scale) v inside each sequence, [num_tokens, num_heads * v_dim].

    q: [num_tokens, num_heads * qk_dim]; k, v: [num_tokens, num_kv_heads * dim].
    """
    made = []
    for group in sequences.groups:
        size = tuple(group.rows.shape)
        queries, keys, values = (
            part.index_select(0, group.rows.reshape(-1)).view(*size, heads, dim).transpose(1, 2)
            for part, heads, dim in (
                (q, op.num_heads, op.qk_dim),
                (k, op.num_kv_heads, op.qk_dim),
                (v, op.num_kv_heads, op.v_dim),
            )
        )
        out = functional.scaled_dot_product_attention(
            queries, keys, values, group.mask, scale=op.scale, enable_gqa=op.num_heads != op.num_kv_heads
        )
        made.append(out.transpose(1, 2).reshape(size[0] * size[1], -1))
    return torch.cat(made).index_select(0, sequences.scatter)


def pool(op: Pool, value: Tensor, sequences: Sequences) -> Tensor:
    """A row of each sequence, [num_seqs, width], in float32."""
    firsts = torch.from_numpy(sequences.firsts).to(sequences.device)
    lengths = torch.from_numpy(sequences.lengths).to(sequences.device)
    match op.kind:
        case "cls":
            pooled = value.index_select(0, firsts).float()
        case "last":
            pooled = value.index_select(0, firsts + lengths - 1).float()
        case _:
            pooled = torch.segment_reduce(value.float(), op.kind, lengths=lengths)
    return functional.normalize(pooled) if op.normalise else pooled.to(value.dtype)
