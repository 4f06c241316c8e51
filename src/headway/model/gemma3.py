"""Gemma 3's text model: Google 2025; config.json's Gemma3ForCausalLM, GGUF's gemma3."""

from dataclasses import replace

from headway.model.builder import Builder
from headway.model.gemma2 import gemma_decoder
from headway.model.parts import ONE_PLUS
from headway.model.program import Program


def make_gemma3(builder: Builder) -> Program:
    """As Gemma 2; q and k are normalised over each head, and layers with a window turn by the shape's local_rope."""
    return gemma_decoder(builder, qk_norm=replace(ONE_PLUS, over="head"))
