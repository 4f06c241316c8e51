"""GPT-NeoX and Pythia: Black et al. 2022, Biderman et al. 2023; config.json's GPTNeoXForCausalLM, GGUF's gptneox."""

from headway.model import parts
from headway.model.builder import Builder
from headway.model.parts import LAYER
from headway.model.program import Program


def make_gpt_neox(builder: Builder) -> Program:
    """Layer norms, rotary positions on a part of each head, an MLP without a gate. Attention and MLP read the same
    hidden state where the shape says is_parallel."""
    hidden = parts.embedding(builder)
    for layer, rope in enumerate(parts.ropes(builder)):
        at, source = f"layers.{layer}", hidden
        normed = parts.norm(builder, f"{at}.attn_norm", source, LAYER)
        hidden = parts.residual(builder, f"{at}.attn", source, parts.attention(builder, layer, normed, rope=rope))
        normed = parts.norm(builder, f"{at}.mlp_norm", source if builder.shape.is_parallel else hidden, LAYER)
        hidden = parts.residual(builder, f"{at}.mlp", hidden, parts.plain_mlp(builder, layer, normed))
    parts.language_head(builder, hidden, LAYER)
    return builder.build()
