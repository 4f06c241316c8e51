"""Gemma 2: Google 2024; config.json's Gemma2ForCausalLM, GGUF's gemma2."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.parts import ONE_PLUS, NormStyle
from headway.model.program import Program


def make_gemma2(builder: Builder) -> Program:
    """Norms before and behind attention and MLP, all by 1 + weight; scales, soft caps and windows are the shape's."""
    return gemma_decoder(builder, qk_norm=None)


def gemma_decoder(builder: Builder, *, qk_norm: NormStyle | None) -> Program:
    """What Gemma 2 and 3 share; qk_norm is of q and k, None for none."""
    hidden = parts.embedding(builder)
    for layer, rope in enumerate(parts.ropes(builder)):
        at = f"layers.{layer}"
        normed = parts.norm(builder, f"{at}.attn_norm", hidden, ONE_PLUS)
        update = parts.attention(builder, layer, normed, rope=rope, qk_norm=qk_norm)
        update = parts.norm(builder, f"{at}.attn_out_norm", update, ONE_PLUS)
        hidden = parts.residual(builder, f"{at}.attn", hidden, update)
        normed = parts.norm(builder, f"{at}.mlp_norm", hidden, ONE_PLUS)
        update = parts.norm(builder, f"{at}.mlp_out_norm", parts.gated_mlp(builder, layer, normed), ONE_PLUS)
        hidden = parts.residual(builder, f"{at}.mlp", hidden, update)
    parts.language_head(builder, hidden, ONE_PLUS)
    return builder.build()
