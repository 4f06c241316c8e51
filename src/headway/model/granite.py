"""Granite 3: IBM 2024; config.json's GraniteForCausalLM. A Llama with four scales, all in the shape."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_granite(builder: Builder) -> Program:
    """As Llama; embeddings, attention scores, residual updates and logits are multiplied by the shape's numbers."""
    return parts.decoder(builder)
