"""Llama and what is built like it: Touvron et al. 2023; config.json's LlamaForCausalLM, GGUF's llama."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_llama(builder: Builder) -> Program:
    """Pre-norm blocks, rotary positions on all layers, a gated MLP."""
    return parts.decoder(builder)
