"""Small Llamas: one whose bytes are worked out by hand in several tests, and its kin."""

from dataclasses import replace
from typing import Any

from headway.checkpoint.shape import ModelShape, RopeShape

LLAMA = ModelShape(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    max_position=512,
    norm_eps=1e-5,
    rope=RopeShape(dims=16),
    is_tied=True,
)


def like_llama(*, head_dim: int = 16, **changes: Any) -> ModelShape:
    """LLAMA with other heads, all of them turned, and other changes."""
    return replace(LLAMA, **{"head_dim": head_dim, "rope": RopeShape(dims=head_dim), **changes})


TINY_LLAMA = like_llama(vocab_size=40, hidden_size=32, head_dim=8, intermediate_size=48, max_position=1024)
"""Small enough for every kind of step at every border."""
