"""OLMo 2: AI2 2024; config.json's Olmo2ForCausalLM, GGUF's olmo2."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.parts import RMS
from headway.model.program import Program


def make_olmo2(builder: Builder) -> Program:
    """Attention and MLP read the hidden state as it is, what they add is normalised; q and k are over all heads."""
    hidden = parts.embedding(builder)
    for layer, rope in enumerate(parts.ropes(builder)):
        at = f"layers.{layer}"
        update = parts.attention(builder, layer, hidden, rope=rope, qk_norm=RMS)
        update = parts.norm(builder, f"{at}.attn_out_norm", update, RMS)
        hidden = parts.residual(builder, f"{at}.attn", hidden, update)
        update = parts.norm(builder, f"{at}.mlp_out_norm", parts.gated_mlp(builder, layer, hidden), RMS)
        hidden = parts.residual(builder, f"{at}.mlp", hidden, update)
    parts.language_head(builder, hidden, RMS)
    return builder.build()
