"""SmolLM3: Hugging Face 2025; config.json's SmolLM3ForCausalLM. A Llama where every fourth layer has no positions."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_smollm3(builder: Builder) -> Program:
    """As Llama; layers in rope.skipped_layers attend without positions (NoPE, Kazemnejad et al. 2023)."""
    return parts.decoder(builder)
