"""GPT-2: Radford et al. 2019; config.json's GPT2LMHeadModel, GGUF's gpt2."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.parts import LAYER
from headway.model.program import Program


def make_gpt2(builder: Builder) -> Program:
    """Learned positions, layer norms in front of attention and of an MLP without a gate."""
    hidden = parts.learned_positions(builder, parts.embedding(builder))
    for layer in range(builder.shape.num_layers):
        at = f"layers.{layer}"
        normed = parts.norm(builder, f"{at}.attn_norm", hidden, LAYER)
        hidden = parts.residual(builder, f"{at}.attn", hidden, parts.attention(builder, layer, normed, rope=None))
        normed = parts.norm(builder, f"{at}.mlp_norm", hidden, LAYER)
        hidden = parts.residual(builder, f"{at}.mlp", hidden, parts.plain_mlp(builder, layer, normed))
    parts.language_head(builder, hidden, LAYER)
    return builder.build()
