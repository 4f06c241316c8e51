"""Qwen3-MoE: Qwen team 2025; config.json's Qwen3MoeForCausalLM."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.experts import mlp_or_experts
from headway.model.program import Program


def make_qwen3_moe(builder: Builder) -> Program:
    """As Qwen3, with experts on some layers and no shared one."""
    return parts.decoder(builder, mlp=mlp_or_experts)
