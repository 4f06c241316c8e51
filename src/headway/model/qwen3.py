"""Qwen3: Qwen team 2025; config.json's Qwen3ForCausalLM. No biases; q and k are normalised over each head."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_qwen3(builder: Builder) -> Program:
    """As Llama; the shape says has_qk_norm, and head_dim is its own number."""
    return parts.decoder(builder)
