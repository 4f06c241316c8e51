"""Gemma 2 and 3: four norms a layer, soft caps, windows on most layers. Gemma 3 turns those by other frequencies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import llama
from headway.checkpoint.huggingface.keys import Defaults, read_decoder, refuse, with_full_layers
from headway.checkpoint.huggingface.rope import rope_of
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import ModelShape

NAMES = TensorNames(
    outside=llama.OUTSIDE,
    parts=llama.PARTS
    | {
        "post_attention_layernorm": "attn_out_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_out_norm",
    },
)
_GEMMA2 = Defaults(
    name="gemma2",
    num_kv_heads=4,
    head_dim=256,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    is_tied=True,
    sliding_window=4096,
)
_GEMMA3 = replace(_GEMMA2, name="gemma3", theta=1_000_000.0, has_qk_norm=True)
_LOCAL_THETA = 10000.0


def read_gemma2(config: Fields) -> ModelShape:
    """Gemma2ForCausalLM: every second layer has a window, beginning with the first."""
    shape = _scaled(config, read_decoder(config, _GEMMA2), attention_soft_cap=50.0, logits_soft_cap=30.0)
    return with_full_layers(config, shape, range(1, shape.num_layers, 2))


def read_gemma3(config: Fields) -> ModelShape:
    """Gemma3ForCausalLM: all layers but each sliding_window_pattern-th have a window."""
    everywhere, local = _rope_parameters(config)
    flat = Fields({**config.values, "rope_parameters": everywhere}, config.where)
    shape = _scaled(config, read_decoder(flat, _GEMMA3), attention_soft_cap=None, logits_soft_cap=None)
    pattern = config.integer("sliding_window_pattern", 6)
    shape = replace(shape, local_rope=rope_of(config, local, shape.head_dim, theta=_LOCAL_THETA))
    return with_full_layers(config, shape, range(pattern - 1, shape.num_layers, pattern))


def _rope_parameters(config: Fields) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Of full layers and of those with a window. Older files say rope_theta and rope_local_base_freq."""
    given = Fields(config.mapping("rope_parameters"), f"{config.where}: rope_parameters")
    is_by_kind = any(isinstance(value, dict) for value in given.values.values())
    local = dict(given.mapping("sliding_attention")) if is_by_kind else {}
    local.setdefault("rope_theta", config.number("rope_local_base_freq", _LOCAL_THETA))
    return given.mapping("full_attention") if is_by_kind else given.values, local


def _scaled(
    config: Fields, shape: ModelShape, *, attention_soft_cap: float | None, logits_soft_cap: float | None
) -> ModelShape:
    """With Gemma's scales and caps; an explicit null is no cap, a missing key the default."""
    if config.boolean("use_bidirectional_attention", False):
        refuse(config, "has bidirectional attention, which is not supported yet")
    return replace(
        shape,
        embedding_scale=shape.hidden_size**0.5,
        attention_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=_cap(config, "attn_logit_softcapping", attention_soft_cap),
        logits_soft_cap=_cap(config, "final_logit_softcapping", logits_soft_cap),
    )


def _cap(config: Fields, key: str, default: float | None) -> float | None:
    if config.has(key):
        return config.number(key)
    return None if key in config.values else default
