"""Mixtures of experts with torch: Route's choice as one matrix of weights, Experts as a loop over the experts that were
chosen by anyone, ascending. How many calls a step makes depends on the number of experts, not on that of sequences."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headway.executor.torch_weights import Product
from headway.model.ops import Route


def route(op: Route, logits: Tensor, bias: Tensor | None) -> Tensor:
    """What each expert's result is multiplied by, [rows, experts] in float32; op says how.

    Args:
        logits: [rows, experts].
        bias: [experts], of the choice.
    """
    scores = logits.float()
    scores = torch.softmax(scores, dim=-1) if op.scoring == "softmax" else torch.sigmoid(scores)  # 1
    choice = scores if bias is None else scores + bias.float()  # 2
    if op.num_groups > op.top_groups:
        choice = _within_groups(op, choice)
    # A stable sort and not topk: of equal ones the lower.
    chosen = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, : op.top_k]  # 3
    kept = scores.gather(1, chosen)
    if op.normalise:
        kept = kept / kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(1, chosen, kept * op.scale)


def _within_groups(op: Route, choice: Tensor) -> Tensor:
    """choice with minus infinity outside the best groups."""
    groups = choice.view(choice.shape[0], op.num_groups, -1)
    num_counted = min(2 if op.group_score == "two_largest" else 1, groups.shape[-1])
    worth = groups.topk(num_counted, dim=-1).values.sum(dim=-1)
    best = torch.sort(worth, dim=-1, descending=True, stable=True).indices[:, : op.top_groups]
    is_out = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, False)
    return groups.masked_fill(is_out[:, :, None], -torch.inf).flatten(1)


def run_experts(
    width: int,
    value: Tensor,
    routing: Tensor,
    pairs: Sequence[Product],
    downs: Sequence[Product],
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    """The sum of the experts' results, [rows, width].

    Args:
        width: of what down gives.
        value: [rows, in width].
        routing: [rows, num_experts].
        pairs: of each expert the product with gate over up.
        downs: of each expert the product with down.
        activation: of the gate.
    """
    total = value.new_zeros(value.shape[0], width)
    chosen = routing != 0
    for expert in chosen.any(dim=0).nonzero().flatten().tolist():
        rows = chosen[:, expert].nonzero().flatten()
        gate, up = pairs[expert](value.index_select(0, rows)).chunk(2, dim=-1)
        made = downs[expert](activation(gate) * up)
        total.index_add_(0, rows, made * routing[rows, expert, None].to(made.dtype))
    return total
