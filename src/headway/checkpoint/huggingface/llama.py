"""Llama and what is laid out like it: Mistral, Qwen 2 and 3, SmolLM3, Granite."""

from dataclasses import replace

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.keys import Defaults, read_decoder, with_full_layers
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import ModelShape

OUTSIDE = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "lm_head.weight",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.o",
    "self_attn.q_norm": "attn.q_norm",
    "self_attn.k_norm": "attn.k_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
NAMES = TensorNames(outside=OUTSIDE, parts=PARTS)

_LLAMA = Defaults(name="llama", has_mlp_bias_key=True)
_MISTRAL = Defaults(name="mistral", num_kv_heads=8, sliding_window=4096, qkv_bias=False)
_QWEN2 = Defaults(name="qwen2", num_kv_heads=32, sliding_window=4096, window_needs_flag=True, qkv_bias=True)
_QWEN3 = Defaults(
    name="qwen3", num_kv_heads=32, head_dim=128, sliding_window=4096, window_needs_flag=True, has_qk_norm=True
)
_SMOLLM3 = Defaults(
    name="smollm3", num_kv_heads=4, theta=2000000.0, is_tied=True, window_needs_flag=True, has_mlp_bias_key=True
)
_GRANITE = Defaults(name="granite", has_mlp_bias_key=True)


def read_llama(config: Fields) -> ModelShape:
    """LlamaForCausalLM."""
    return read_decoder(config, _LLAMA)


def read_mistral(config: Fields) -> ModelShape:
    """MistralForCausalLM."""
    return read_decoder(config, _MISTRAL)


def read_qwen2(config: Fields) -> ModelShape:
    """Qwen2ForCausalLM."""
    return with_late_window(config, read_decoder(config, _QWEN2))


def read_qwen3(config: Fields) -> ModelShape:
    """Qwen3ForCausalLM."""
    return with_late_window(config, read_decoder(config, _QWEN3))


def with_late_window(config: Fields, shape: ModelShape) -> ModelShape:
    """Only layers from max_window_layers on have the window, where layer_types says nothing else (Qwen)."""
    first = min(config.integer("max_window_layers", 28, low=0), shape.num_layers)
    return with_full_layers(config, shape, range(first))


def read_smollm3(config: Fields) -> ModelShape:
    """SmolLM3ForCausalLM. Only layers without positions have the window."""
    shape = read_decoder(config, _SMOLLM3)
    if shape.rope is None:
        return shape
    skipped = _skipped_layers(config, shape.num_layers)
    shape = replace(shape, rope=replace(shape.rope, skipped_layers=skipped))
    return with_full_layers(config, shape, sorted(set(range(shape.num_layers)) - skipped))


def _skipped_layers(config: Fields, num_layers: int) -> frozenset[int]:
    """no_rope_layers has a 1 for each layer with positions; without it each no_rope_layer_interval-th has none."""
    flags = config.values.get("no_rope_layers")
    if flags is None:
        interval = config.integer("no_rope_layer_interval", 4)
        return frozenset(layer for layer in range(num_layers) if (layer + 1) % interval == 0)
    if not isinstance(flags, list) or len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        config.fail("no_rope_layers", f"is not a list of 0 or 1 for each of {num_layers} layers")
    return frozenset(layer for layer in range(num_layers) if not flags[layer])


def read_granite(config: Fields) -> ModelShape:
    """GraniteForCausalLM."""
    return replace(
        read_decoder(config, _GRANITE),
        attention_scale=config.number("attention_multiplier", 1.0),
        embedding_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logits_scale=1.0 / config.number("logits_scaling", 1.0),
    )
