"""How a step's sequences are grouped, so that attention takes a call a group and not one a sequence. Pure numpy.

A piece is a run of new tokens of one sequence with what it may look back on. Most sequences are one piece; a long chunk
over a long context is cut into several, so that no mask outgrows its limit (planner/limits.py). Pieces whose query and
context lengths round up to the same powers of two form a group, padded to the longest among them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.executor.base import Int64, StepArrays
from headway.planner.limits import MAX_ATTENTION_SCORES, MAX_GATHERED_ON_GPU, MAX_GATHERED_TOKENS

MIN_CONTEXT = 64
"""Contexts are grouped as if they were at least so long: short ones are not worth a call of their own."""
MAX_SLICES = 8
SLICE_TOKENS = 2048
"""A class of more cached tokens is cut into slices, so that what one call gathers is still in the processor's cache
when it is read: a third less time at 64 sequences of 256 tokens. Slices are few, whatever the batch."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group stays under."""

    max_scores: int = MAX_ATTENTION_SCORES
    """Query rows x context tokens."""
    max_gathered: int = MAX_GATHERED_TOKENS
    """Cached tokens, unless a single piece has more."""
    max_slices: int = MAX_SLICES


CPU_LIMITS = GroupLimits()
GPU_LIMITS = GroupLimits(max_gathered=MAX_GATHERED_ON_GPU, max_slices=1)


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces that attend in one call: num_pieces x query_len queries over context_len cached tokens each."""

    rows: Int64  # [num_pieces, query_len], each query's token; past a piece's end its last one, whose results are void
    lengths: Int64  # [num_pieces], queries that are the piece's own
    query_positions: Int64  # [num_pieces, query_len]
    context_lens: Int64  # [num_pieces], how many of the cached tokens are the sequence's own
    blocks: Int64  # [num_pieces, num_blocks]
    is_fresh: bool
    """Each piece starts at position 0: query i sees keys 0 to i, and no mask is needed."""

    @property
    def num_pieces(self) -> int:
        """Pieces."""
        return int(self.rows.shape[0])

    @property
    def is_own(self) -> npt.NDArray[np.bool_]:
        """Which of rows are no padding, [num_pieces, query_len]."""
        own: npt.NDArray[np.bool_] = np.arange(self.query_len)[None, :] < self.lengths[:, None]
        return own

    @property
    def query_len(self) -> int:
        """Queries of each piece, with padding."""
        return int(self.rows.shape[1])


@dataclass(frozen=True, slots=True)
class _Pieces:
    sequences: Int64  # [num_pieces]
    starts: Int64  # [num_pieces], first token
    lengths: Int64  # [num_pieces], tokens
    contexts: Int64  # [num_pieces]


def make_groups(step: StepArrays, block_size: int, limits: GroupLimits = CPU_LIMITS) -> tuple[Group, ...]:
    """The groups of a step, by query length and context length, each in the order of its sequences."""
    pieces = _cut(step, limits.max_scores)
    if pieces.lengths.size == 0:
        return ()
    num_blocks = -(-pieces.contexts // block_size)
    query_class = _power_of_two(pieces.lengths)
    context_class = _power_of_two(np.maximum(num_blocks, -(-MIN_CONTEXT // block_size)))
    is_fresh = (pieces.lengths > 1) & (pieces.lengths == pieces.contexts)
    keys = (query_class << 32) | (context_class << 1) | is_fresh
    groups = []
    for key in np.unique(keys):
        members = np.flatnonzero(keys == key)
        context_len = int(num_blocks[members].max()) * block_size
        at_once = _pieces_at_once(members.size, int(pieces.lengths[members].max()), context_len, limits)
        for first in range(0, members.size, at_once):
            chosen = members[first : first + at_once]
            groups.append(_make_group(step, pieces, chosen, int(num_blocks[chosen].max()), bool(is_fresh[chosen[0]])))
    return tuple(groups)


def _pieces_at_once(num_pieces: int, query_len: int, context_len: int, limits: GroupLimits) -> int:
    """How many of a class's pieces make a group: what the limits allow, in at most max_slices slices if they do."""
    allowed = max(1, min(limits.max_scores // query_len, limits.max_gathered) // context_len)
    num_slices = min(limits.max_slices, -(-num_pieces * context_len // SLICE_TOKENS))
    return min(allowed, -(-num_pieces // num_slices))


def _cut(step: StepArrays, max_scores: int) -> _Pieces:
    starts = step.query_starts[:-1].astype(np.int64)
    lengths = np.diff(step.query_starts).astype(np.int64)
    contexts = step.context_lens.astype(np.int64)
    sequences = np.arange(lengths.size, dtype=np.int64)
    limits = np.maximum(1, max_scores // np.maximum(contexts, 1))
    num_pieces = -(-lengths // limits)
    if (num_pieces == 1).all():
        return _Pieces(sequences, starts, lengths, contexts)
    of = np.repeat(sequences, num_pieces)
    nth = np.arange(of.size) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    begun = nth * limits[of]
    size = np.minimum(limits[of], lengths[of] - begun)
    return _Pieces(of, starts[of] + begun, size, contexts[of] - lengths[of] + begun + size)


def _make_group(step: StepArrays, pieces: _Pieces, members: Int64, num_blocks: int, is_fresh: bool) -> Group:
    lengths, contexts = pieces.lengths[members], pieces.contexts[members]
    offsets = np.minimum(np.arange(int(lengths.max()))[None, :], lengths[:, None] - 1)
    return Group(
        rows=pieces.starts[members][:, None] + offsets,
        lengths=lengths,
        query_positions=(contexts - lengths)[:, None] + offsets,
        context_lens=contexts,
        blocks=step.block_tables[pieces.sequences[members], :num_blocks].astype(np.int64),
        is_fresh=is_fresh,
    )


def _power_of_two(values: Int64) -> Int64:
    """The least power of two that is not less, for values from 1 up to 2**30."""
    result: Int64 = 1 << np.ceil(np.log2(values)).astype(np.int64)
    return result
