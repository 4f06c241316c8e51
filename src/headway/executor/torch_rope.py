"""Rotary positions with torch: cosines and sines are made once a step and shared by all layers that turn alike."""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from headway.model.ops import Rope

Turns = dict[int, tuple[Tensor, Tensor]]
"""Of one step, by the number of the rope: cosines and sines, [num_tokens, 1, dims / 2]."""
Turn = Callable[[Tensor, Tensor, Turns], Tensor]
"""value [num_tokens, any number of heads * head_dim], positions [num_tokens] -> the same, turned; a new tensor."""


def make_turn(op: Rope, numbers: dict[Hashable, int], dtype: torch.dtype, device: torch.device) -> Turn:
    """The function of a Rope.

    Args:
        op: its numbers.
        numbers: the ropes known so far, by what their cosines depend on; an unknown one is added.
        dtype: of the values. Angles are float32 and cosines rounded to dtype, as transformers has them.
        device: of the values.
    """
    key = numbers.setdefault((op.frequencies, op.magnitude), len(numbers))
    frequencies = torch.tensor(op.frequencies, dtype=torch.float32, device=device)
    magnitude, head_dim, start, end = op.magnitude, op.head_dim, op.start, op.start + op.dims
    if op.layout == "half":
        middle = start + op.dims // 2
        first, second = slice(start, middle), slice(middle, end)
    else:
        first, second = slice(start, end, 2), slice(start + 1, end, 2)

    def turn(value: Tensor, positions: Tensor, turns: Turns) -> Tensor:
        if key not in turns:
            angles = positions.to(torch.float32)[:, None, None] * frequencies
            turns[key] = (angles.cos() * magnitude).to(dtype), (angles.sin() * magnitude).to(dtype)
        cosines, sines = turns[key]
        heads = value.view(value.shape[0], value.shape[1] // head_dim, head_dim)
        low, high = heads[..., first], heads[..., second]
        turned = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
        torch.mul(low, cosines, out=turned[..., first]).addcmul_(high, sines, value=-1)
        torch.mul(high, cosines, out=turned[..., second]).addcmul_(low, sines)
        turned[..., :start] = heads[..., :start]
        turned[..., end:] = heads[..., end:]
        return turned.flatten(1)

    return turn
