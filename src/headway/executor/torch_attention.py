"""Paged attention with torch: K and V of a group of sequences are gathered by block and attended to in one call.

Grouped queries are not expanded: for a decode step the queries that share a key head stand as rows of one call
[num_pieces, num_kv_heads, group_size, dim]; for longer runs there is one call for each query of a key head's group.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headway.executor.base import KVBuffers, StepArrays
from headway.executor.groups import CPU_LIMITS, GPU_LIMITS, make_groups
from headway.model.ops import Attention
from headway.model.program import CacheSpec

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(slots=True)
class GroupTensors:
    """Pieces that attend in one call (groups.py), on the device, with their masks as they are asked for."""

    table: Tensor  # [num_pieces, num_blocks]
    context_lens: Tensor  # [num_pieces]
    query_positions: Tensor  # [num_pieces, query_len]
    block_size: int
    dtype: torch.dtype
    first_row: int = 0
    """Of its queries among those of all groups."""
    is_fresh: bool = False
    """Each piece starts at position 0, so that no mask is needed."""
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)
    unused: Tensor | None = None
    """Gathered rows that are no token of the sequence, once asked for."""
    slots: Tensor | None = None
    """The slot of each gathered row, once asked for."""

    @property
    def num_pieces(self) -> int:
        """Pieces."""
        return self.table.shape[0]

    @property
    def query_len(self) -> int:
        """Queries of each piece, with padding."""
        return self.query_positions.shape[1]

    @property
    def context_len(self) -> int:
        """Cached tokens that are gathered for each piece."""
        return self.table.shape[1] * self.block_size

    @property
    def num_rows(self) -> int:
        """Queries, with padding."""
        return self.query_positions.numel()

    def mask(self, window: int | None) -> Tensor | None:
        """Added to the scores, [num_pieces, 1, query_len, context_len]; None where causality alone says it all."""
        if window not in self.masks:
            self.masks[window] = self._make_mask(window)
        return self.masks[window]

    def _make_mask(self, window: int | None) -> Tensor | None:
        is_narrow = window is not None and window < self.context_len
        if self.is_fresh and not is_narrow:
            return None
        keys, queries = self._keys(), self.query_positions[:, None, :, None]
        is_hidden = keys > queries
        if window is not None and is_narrow:
            is_hidden |= keys <= queries - window
        mask = torch.zeros(is_hidden.shape, dtype=self.dtype, device=keys.device)
        return mask.masked_fill_(is_hidden, -torch.inf)

    def unused_rows(self) -> Tensor:
        """Rows of the gathered [num_pieces * context_len, ...] past each piece's context."""
        if self.unused is None:
            self.unused = (self._keys() >= self.context_lens[:, None]).flatten().nonzero().flatten()
        return self.unused

    def slots_or(self, other: int) -> Tensor:
        """The slot of each gathered row, [num_pieces * context_len]; `other` for those past a piece's context."""
        if self.slots is None:
            keys = self._keys()
            slots = self.table[:, keys // self.block_size] * self.block_size + keys % self.block_size
            self.slots = slots.masked_fill_(keys >= self.context_lens[:, None], other).flatten()
        return self.slots

    def _keys(self) -> Tensor:
        return torch.arange(self.context_len, device=self.table.device)


@dataclass(frozen=True, slots=True)
class StepGroups:
    """All groups of a step, and how rows of tokens become rows of groups and back."""

    groups: tuple[GroupTensors, ...]
    gather: Tensor | None  # [num rows of all groups], token of each; None: rows are tokens
    scatter: Tensor | None  # [num_tokens], row of each token


def make_step_groups(step: StepArrays, block_size: int, dtype: torch.dtype, device: torch.device) -> StepGroups:
    """Made once a step, used by each layer."""
    groups = make_groups(step, block_size, GPU_LIMITS if device.type == "cuda" else CPU_LIMITS)
    made, first_row = [], 0
    for group in groups:
        table, context_lens, query_positions = (
            torch.from_numpy(array).to(device) for array in (group.blocks, group.context_lens, group.query_positions)
        )
        made.append(
            GroupTensors(table, context_lens, query_positions, block_size, dtype, first_row, is_fresh=group.is_fresh)
        )
        first_row += int(group.rows.size)
    rows = [torch.from_numpy(group.rows.reshape(-1)) for group in groups]
    gather = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
    num_tokens = int(step.token_ids.size)
    if first_row == num_tokens and bool((gather == torch.arange(num_tokens)).all()):
        return StepGroups(tuple(made), None, None)
    scatter = torch.empty(num_tokens, dtype=torch.int64)
    own = torch.from_numpy(np.concatenate([group.is_own.reshape(-1) for group in groups]))
    # Not the padding: unmasked it sees keys past its sequence's end.
    scatter[gather[own]] = own.nonzero().flatten()
    return StepGroups(tuple(made), gather.to(device), scatter.to(device))


@dataclass(slots=True)
class Workspace:
    """Where K and V are gathered on the CPU: grown when a step needs more and shared by all layers: no new pages.

    A device's memory is torch's own to give again, and what a graph has captured must not move.
    """

    dtype: torch.dtype
    device: torch.device
    buffers: list[Tensor] = field(default_factory=list)

    def pair(self, num_elements: int) -> tuple[Tensor, Tensor]:
        """Two flat tensors of num_elements."""
        if not self.buffers or self.buffers[0].numel() < num_elements:
            self.buffers = [torch.empty(num_elements, dtype=self.dtype, device=self.device) for _ in range(2)]
        return self.buffers[0][:num_elements], self.buffers[1][:num_elements]


class PagedCache:
    """K and V of one cache id as tensors: over the KVBuffers' memory, or with `is_own` in memory of the device.

    Its own have two blocks more than the KVBuffers, that no sequence has: one that is written for rows that pad a step,
    and one that stays zero and is read in place of what lies past a context. So nothing that is not a sequence's own is
    ever read: a mask cannot hide NaN.
    """

    def __init__(self, spec: CacheSpec, kv: KVBuffers, device: torch.device, *, is_own: bool) -> None:
        dtype = TORCH_DTYPES[kv.dtype]
        self.zero_slot = (kv.num_blocks + 1) * kv.block_size if is_own else None
        num_slots = (kv.num_blocks + 2 * is_own) * kv.block_size
        widths = (spec.num_kv_heads * spec.qk_dim, spec.num_kv_heads * spec.own_v_dim)
        if is_own:
            keys, values = (torch.zeros(num_slots * width, dtype=dtype, device=device) for width in widths)
        else:
            buffers = kv.buffers(spec.cache_id)
            keys, values = (_tensor_over(*pair, dtype, num_slots) for pair in zip(buffers, widths, strict=True))
        self.key_slots, self.value_slots = keys.view(num_slots, widths[0]), values.view(num_slots, widths[1])
        num_blocks = num_slots // kv.block_size
        self.key_blocks, self.value_blocks = keys.view(num_blocks, -1), values.view(num_blocks, -1)

    def write(self, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
        """Puts each token's K and V [num_tokens, width] into its slot; without a V it is a part of K."""
        self.key_slots.index_copy_(0, slots, k)
        if v is not None:
            self.value_slots.index_copy_(0, slots, v)

    def gather(self, group: GroupTensors, workspace: Workspace, *, clear_unused: bool) -> tuple[Tensor, Tensor]:
        """K and V of a group's contexts, [num_pieces * context_len, width] each, valid until the next gather."""
        if self.zero_slot is not None:
            slots = group.slots_or(self.zero_slot)
            return self.key_slots.index_select(0, slots), self.value_slots.index_select(0, slots)
        num_blocks = group.table.numel()
        key_width, value_width = self.key_blocks.shape[1], self.value_blocks.shape[1]
        keys, values = workspace.pair(num_blocks * max(key_width, value_width))
        keys = keys[: num_blocks * key_width].view(num_blocks, key_width)
        values = values[: num_blocks * value_width].view(num_blocks, value_width)
        blocks = group.table.reshape(-1)
        torch.index_select(self.key_blocks, 0, blocks, out=keys)
        torch.index_select(self.value_blocks, 0, blocks, out=values)
        num_rows = group.num_pieces * group.context_len
        keys, values = keys.view(num_rows, -1), values.view(num_rows, self.value_slots.shape[1])
        if clear_unused:
            keys.index_fill_(0, group.unused_rows(), 0)
            values.index_fill_(0, group.unused_rows(), 0)
        return keys, values


def _tensor_over(buffer: memoryview, width: int, dtype: torch.dtype, num_slots: int) -> Tensor:
    count = num_slots * width
    return torch.frombuffer(buffer, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)


def attend(
    op: Attention,
    q: Tensor,
    cache: PagedCache,
    step: StepGroups,
    workspace: Workspace,
    *,
    clear_unused: bool = False,
) -> Tensor:
    """Attention of all tokens of a step over what their sequences have in the cache.

    Args:
        op: its numbers.
        q: [num_tokens, num_heads * qk_dim].
        cache: holds the step's own K and V already.
        step: the groups.
        workspace: to gather into.
        clear_unused: zero what is gathered past a context, where it may hold NaN or infinity: a mask cannot hide those.

    Returns:
        [num_tokens, num_heads * v_dim].
    """
    if not step.groups:
        return q.new_empty(0, op.num_heads * op.v_dim)
    rows = q if step.gather is None else q.index_select(0, step.gather)
    made = []
    for group in step.groups:
        keys, values = cache.gather(group, workspace, clear_unused=clear_unused)
        queries = rows[group.first_row : group.first_row + group.num_rows]
        made.append(_attend_group(op, queries, keys, values, group))
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out if step.scatter is None else out.index_select(0, step.scatter)


def _attend_group(op: Attention, q: Tensor, keys: Tensor, values: Tensor, group: GroupTensors) -> Tensor:
    pieces, length, heads = group.num_pieces, group.query_len, op.num_kv_heads
    group_size = op.num_heads // heads
    k = keys.view(pieces, group.context_len, heads, op.qk_dim).transpose(1, 2)
    v = k[..., : op.v_dim] if op.v is None else values.view(pieces, -1, heads, op.v_dim).transpose(1, 2)
    mask = group.mask(op.window)
    if length == 1:
        out = _scores(op, q.view(pieces, heads, group_size, op.qk_dim), k, v, mask)
        return out.reshape(pieces, -1)
    q = q.view(pieces, length, heads, group_size, op.qk_dim).permute(3, 0, 2, 1, 4)
    outs = [_scores(op, part, k, v, mask) for part in q]  # each [pieces, heads, length, v_dim]
    return torch.stack(outs, dim=2).permute(0, 3, 1, 2, 4).reshape(pieces * length, -1)


def _scores(op: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    if op.soft_cap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=op.scale)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * (op.scale / op.soft_cap)
    scores = scores.tanh_().mul_(op.soft_cap)
    if mask is None:
        length = q.shape[-2], k.shape[-2]
        mask = torch.full(length, -torch.inf, device=q.device).triu_(1)
    return torch.matmul(torch.softmax(scores + mask, dim=-1).to(v.dtype), v)
