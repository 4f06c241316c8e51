"""A small Llama whose bytes are worked out by hand in several tests."""

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
