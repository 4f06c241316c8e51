"""Qwen2 and Qwen2.5: Qwen team 2024; config.json's Qwen2ForCausalLM. A Llama with biases on q, k and v."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_qwen2(builder: Builder) -> Program:
    """As Llama; the shape says has_qkv_bias."""
    return parts.decoder(builder)
