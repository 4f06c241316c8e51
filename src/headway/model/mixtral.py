"""Mixtral: Jiang et al. 2024; config.json's MixtralForCausalLM, GGUF's llama with experts."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.experts import mlp_or_experts
from headway.model.program import Program


def make_mixtral(builder: Builder) -> Program:
    """As Mistral, with experts in the place of each MLP."""
    return parts.decoder(builder, mlp=mlp_or_experts)
