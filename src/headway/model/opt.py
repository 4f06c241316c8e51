"""OPT: Zhang et al. 2022; config.json's OPTForCausalLM."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.parts import LAYER
from headway.model.program import Program

POSITION_OFFSET = 2
"""The table of positions begins two rows before position 0, as fairseq's does."""


def make_opt(builder: Builder) -> Program:
    """Learned positions, layer norms, an MLP without a gate. Norms stand before attention and MLP; in
    the 350M model, whose embedding is narrower than the hidden state, behind the residuals."""
    is_post_norm = builder.shape.is_post_norm
    hidden = parts.learned_positions(builder, parts.embedding(builder), offset=POSITION_OFFSET)
    for layer in range(builder.shape.num_layers):
        hidden = (_post_norm_layer if is_post_norm else _pre_norm_layer)(builder, layer, hidden)
    parts.language_head(builder, hidden, None if is_post_norm else LAYER)
    return builder.build()


def _pre_norm_layer(builder: Builder, layer: int, hidden: str) -> str:
    at = f"layers.{layer}"
    normed = parts.norm(builder, f"{at}.attn_norm", hidden, LAYER)
    hidden = parts.residual(builder, f"{at}.attn", hidden, parts.attention(builder, layer, normed, rope=None))
    normed = parts.norm(builder, f"{at}.mlp_norm", hidden, LAYER)
    return parts.residual(builder, f"{at}.mlp", hidden, parts.plain_mlp(builder, layer, normed))


def _post_norm_layer(builder: Builder, layer: int, hidden: str) -> str:
    at = f"layers.{layer}"
    hidden = parts.residual(builder, f"{at}.attn", hidden, parts.attention(builder, layer, hidden, rope=None))
    hidden = parts.norm(builder, f"{at}.attn_norm", hidden, LAYER)
    hidden = parts.residual(builder, f"{at}.mlp", hidden, parts.plain_mlp(builder, layer, hidden))
    return parts.norm(builder, f"{at}.mlp_norm", hidden, LAYER)
