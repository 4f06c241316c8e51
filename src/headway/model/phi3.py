"""Phi-3 and Phi-4: Microsoft 2024; config.json's Phi3ForCausalLM, GGUF's phi3."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_phi3(builder: Builder) -> Program:
    """As Llama; what the files fuse stands apart here. Windows, a part of each head that turns, and longrope's factors,
    chosen for max_model_len, are the shape's."""
    return parts.decoder(builder)
