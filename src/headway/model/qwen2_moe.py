"""Qwen1.5-MoE and Qwen2-MoE: Qwen team 2024; config.json's Qwen2MoeForCausalLM."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.experts import mlp_or_experts
from headway.model.program import Program


def make_qwen2_moe(builder: Builder) -> Program:
    """As Qwen2, with experts on some layers; beside those that are chosen a shared one, times a sigmoid of its own."""
    return parts.decoder(builder, mlp=mlp_or_experts)
