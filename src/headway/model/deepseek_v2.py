"""DeepSeek-V2: DeepSeek-AI 2024; config.json's DeepseekV2ForCausalLM, GGUF's deepseek2."""

from headway.errors import UnsupportedModel
from headway.model import parts
from headway.model.builder import Builder
from headway.model.experts import mlp_or_experts
from headway.model.latent import latent_attention
from headway.model.program import Program


def make_deepseek_v2(builder: Builder) -> Program:
    """Pre-norm blocks of latent attention and an MLP, or experts and a shared one behind the first layers."""
    latent = builder.shape.latent
    if latent is None:
        raise UnsupportedModel(f"{builder.shape.architecture} without latent attention is not supported")
    hidden = parts.embedding(builder)
    for layer, rope in enumerate(parts.ropes(builder)):
        if rope is None:
            raise UnsupportedModel(f"{builder.shape.architecture}: layer {layer} has no rotary positions")
        at = f"layers.{layer}"
        normed = parts.norm(builder, f"{at}.attn_norm", hidden, parts.RMS)
        update = latent_attention(builder, latent, layer, normed, rope)
        hidden = parts.residual(builder, f"{at}.attn", hidden, update)
        normed = parts.norm(builder, f"{at}.mlp_norm", hidden, parts.RMS)
        hidden = parts.residual(builder, f"{at}.mlp", hidden, mlp_or_experts(builder, layer, normed))
    parts.language_head(builder, hidden, parts.RMS)
    return builder.build()
