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
from headway.executor.groups import Group, make_groups
from headway.model.ops import Attention
from headway.model.program import CacheSpec

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(slots=True)
class GroupTensors:
    """A Group on the device, with its masks as they are asked for."""

    group: Group
    blocks: Tensor  # [num_pieces * num_blocks]
    context_len: int
    dtype: torch.dtype
    first_row: int
    """Of its queries among those of all groups."""
    masks: dict[int | None, Tensor | None] = field(default_factory=dict)
    unused: Tensor | None = None
    """Gathered rows that are no token of the sequence, once asked for."""

    @property
    def num_rows(self) -> int:
        """Queries, with padding."""
        return int(self.group.rows.size)

    def mask(self, window: int | None) -> Tensor | None:
        """Added to the scores, [num_pieces, 1, query_len, context_len]; None where causality alone says it all."""
        if window not in self.masks:
            self.masks[window] = self._make_mask(window)
        return self.masks[window]

    def _make_mask(self, window: int | None) -> Tensor | None:
        is_narrow = window is not None and window < self.context_len
        if self.group.is_fresh and not is_narrow:
            return None
        device = self.blocks.device
        keys = torch.arange(self.context_len, device=device)
        queries = torch.from_numpy(self.group.query_positions).to(device)[:, None, :, None]
        is_hidden = keys > queries
        if window is not None and is_narrow:
            is_hidden |= keys <= queries - window
        mask = torch.zeros(is_hidden.shape, dtype=self.dtype, device=device)
        return mask.masked_fill_(is_hidden, -torch.inf)

    def unused_rows(self) -> Tensor:
        """Rows of the gathered [num_pieces * context_len, ...] past each piece's context."""
        if self.unused is None:
            keys = torch.arange(self.context_len)
            is_unused = keys[None, :] >= torch.from_numpy(self.group.context_lens)[:, None]
            self.unused = is_unused.flatten().nonzero().flatten().to(self.blocks.device)
        return self.unused


@dataclass(frozen=True, slots=True)
class StepGroups:
    """All groups of a step, and how rows of tokens become rows of groups and back."""

    groups: tuple[GroupTensors, ...]
    gather: Tensor | None  # [num rows of all groups], token of each; None: rows are tokens
    scatter: Tensor | None  # [num_tokens], row of each token


def make_step_groups(step: StepArrays, block_size: int, dtype: torch.dtype, device: torch.device) -> StepGroups:
    """Made once a step, used by each layer."""
    made, first_row = [], 0
    for group in make_groups(step, block_size):
        blocks = torch.from_numpy(group.blocks.reshape(-1)).to(device)
        context_len = group.blocks.shape[1] * block_size
        made.append(GroupTensors(group, blocks, context_len, dtype, first_row))
        first_row += int(group.rows.size)
    rows = [torch.from_numpy(item.group.rows.reshape(-1)) for item in made]
    gather = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
    num_tokens = int(step.token_ids.size)
    if first_row == num_tokens and bool((gather == torch.arange(num_tokens)).all()):
        return StepGroups(tuple(made), None, None)
    scatter = torch.empty(num_tokens, dtype=torch.int64)
    own = torch.from_numpy(np.concatenate([item.group.is_own.reshape(-1) for item in made]))
    # Not the padding: unmasked it sees keys past its sequence's end.
    scatter[gather[own]] = own.nonzero().flatten()
    return StepGroups(tuple(made), gather.to(device), scatter.to(device))


@dataclass(slots=True)
class Workspace:
    """Where K and V are gathered: grown when a step needs more, shared by all layers: steps map no new pages."""

    dtype: torch.dtype
    device: torch.device
    buffers: list[Tensor] = field(default_factory=list)

    def pair(self, num_elements: int) -> tuple[Tensor, Tensor]:
        """Two flat tensors of num_elements."""
        if not self.buffers or self.buffers[0].numel() < num_elements:
            self.buffers = [torch.empty(num_elements, dtype=self.dtype, device=self.device) for _ in range(2)]
        return self.buffers[0][:num_elements], self.buffers[1][:num_elements]


class PagedCache:
    """K and V of one cache id as tensors over the KVBuffers' memory."""

    def __init__(self, spec: CacheSpec, kv: KVBuffers, device: torch.device) -> None:
        dtype = TORCH_DTYPES[kv.dtype]
        num_slots = kv.num_blocks * kv.block_size
        widths = (spec.num_kv_heads * spec.qk_dim, spec.num_kv_heads * spec.own_v_dim)
        keys, values = (
            _tensor_over(buffer, dtype, num_slots * width, device)
            for buffer, width in zip(kv.buffers(spec.cache_id), widths, strict=True)
        )
        self.num_blocks = kv.num_blocks
        self.key_slots, self.value_slots = keys.view(num_slots, widths[0]), values.view(num_slots, widths[1])
        self.key_blocks, self.value_blocks = keys.view(kv.num_blocks, -1), values.view(kv.num_blocks, -1)

    def write(self, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
        """Puts each token's K and V [num_tokens, width] into its slot; without a V it is a part of K."""
        self.key_slots.index_copy_(0, slots, k)
        if v is not None:
            self.value_slots.index_copy_(0, slots, v)

    def gather(self, group: GroupTensors, workspace: Workspace, *, clear_unused: bool) -> tuple[Tensor, Tensor]:
        """K and V of a group's contexts, [num_pieces * context_len, width] each, valid until the next gather."""
        num_blocks = group.blocks.numel()
        key_width, value_width = self.key_blocks.shape[1], self.value_blocks.shape[1]
        keys, values = workspace.pair(num_blocks * max(key_width, value_width))
        keys = keys[: num_blocks * key_width].view(num_blocks, key_width)
        values = values[: num_blocks * value_width].view(num_blocks, value_width)
        torch.index_select(self.key_blocks, 0, group.blocks, out=keys)
        torch.index_select(self.value_blocks, 0, group.blocks, out=values)
        num_rows = group.group.num_pieces * group.context_len
        keys, values = keys.view(num_rows, -1), values.view(num_rows, self.value_slots.shape[1])
        if clear_unused:
            keys.index_fill_(0, group.unused_rows(), 0)
            values.index_fill_(0, group.unused_rows(), 0)
        return keys, values


def _tensor_over(buffer: memoryview, dtype: torch.dtype, num_elements: int, device: torch.device) -> Tensor:
    if device.type != "cpu" or num_elements == 0:
        return torch.zeros(num_elements, dtype=dtype, device=device)
    return torch.frombuffer(buffer, dtype=dtype, count=num_elements)


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
    pieces, length, heads = group.group.num_pieces, group.group.query_len, op.num_kv_heads
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
