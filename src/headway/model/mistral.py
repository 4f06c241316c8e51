"""Mistral: Jiang et al. 2023; config.json's MistralForCausalLM. A Llama whose attention may look back only so far."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.program import Program


def make_mistral(builder: Builder) -> Program:
    """As Llama; each layer sees the last sliding_window tokens, all of them where that is None."""
    return parts.decoder(builder)
