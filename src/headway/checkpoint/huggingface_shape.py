"""config.json of a Hugging Face folder as ModelShape, and the folder's tensor names as canonical ones.

A key that config.json leaves out has the default of transformers' configuration class, for the classes drop what is
equal to it; the sizes without which no model is meant must be there. Code beside the weights is never imported.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from headway.checkpoint.fields import Fields
from headway.checkpoint.shape import Activation, ModelShape, RopeShape
from headway.errors import UnsupportedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What differs between the architectures: transformers' defaults, and what a config.json does not say."""

    name: str
    num_kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: hidden_size / num_heads."""
    theta: float = 10000.0
    is_tied: bool = False
    sliding_window: int | None = None
    window_needs_flag: bool = False
    """use_sliding_window must be true for the window to count."""
    qkv_bias: bool | None = None
    """None: attention_bias says, of q, k, v and o together."""
    has_mlp_bias_key: bool = False
    has_qk_norm: bool = False


_FAMILIES = {
    "LlamaForCausalLM": _Family(name="llama", has_mlp_bias_key=True),
    "MistralForCausalLM": _Family(name="mistral", num_kv_heads=8, sliding_window=4096, qkv_bias=False),
    "Qwen2ForCausalLM": _Family(
        name="qwen2", num_kv_heads=32, sliding_window=4096, window_needs_flag=True, qkv_bias=True
    ),
    "Qwen3ForCausalLM": _Family(
        name="qwen3", num_kv_heads=32, head_dim=128, sliding_window=4096, window_needs_flag=True, has_qk_norm=True
    ),
    "SmolLM3ForCausalLM": _Family(
        name="smollm3",
        num_kv_heads=4,
        theta=2000000.0,
        is_tied=True,
        window_needs_flag=True,
        has_mlp_bias_key=True,
    ),
    "GraniteForCausalLM": _Family(name="granite", has_mlp_bias_key=True),
}
HF_ARCHITECTURES = tuple(_FAMILIES)

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DTYPES = ("float32", "float16", "bfloat16")
_WITH_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")

_NAMES = {
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
_OUTSIDE = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_LAYER = re.compile(r"model\.layers\.(0|[1-9]\d{0,5})\.([\w.]+)\.(weight|bias)")
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")
"""Not weights: they follow from the config."""


def canonical_name(name: str, *, is_tied: bool) -> str | None:
    """The canonical name of a folder's tensor, its own name where it has none, or None where it is to be ignored."""
    if _DERIVED.fullmatch(name) or (is_tied and name == "lm_head.weight"):
        return None
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = _LAYER.fullmatch(name)
    if match and match[2] in _NAMES:
        return f"layers.{match[1]}.{_NAMES[match[2]]}.{match[3]}"
    return name


def read_shape(config: Fields) -> ModelShape:
    """The architecture's numbers.

    Raises UnsupportedModel for an architecture, or a use of one, that is not there; CorruptCheckpoint for wrong values.
    """
    family = _family(config)
    _check_features(config)
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", family.num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        config.fail("num_key_value_heads", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    head_dim = _head_dim(config, family, hidden_size, num_heads)
    num_layers, max_position = (
        config.integer("num_hidden_layers", high=10_000),
        config.integer("max_position_embeddings"),
    )
    has_attention_bias = config.boolean("attention_bias", False) if family.qkv_bias is None else False
    return ModelShape(
        architecture=family.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_position=max_position,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config, family, head_dim, num_layers),
        activation=_activation(config),
        has_qkv_bias=has_attention_bias if family.qkv_bias is None else family.qkv_bias,
        has_o_bias=has_attention_bias,
        has_mlp_bias=family.has_mlp_bias_key and config.boolean("mlp_bias", False),
        has_qk_norm=family.has_qk_norm,
        is_tied=config.boolean("tie_word_embeddings", family.is_tied),
        sliding_window=_sliding_window(config, family, num_layers),
        dtype=_dtype(config),
        **(_granite_scales(config) if family.name == "granite" else {}),
    )


def _family(config: Fields) -> _Family:
    named = config.values.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        if family := _FAMILIES.get(named[0]):
            return family
        _unsupported(config, f"has the architecture {named[0][:100]!r}; there are {', '.join(HF_ARCHITECTURES)}")
    if named not in (None, []):
        config.fail("architectures", "is not a list of names")
    model_type = config.string("model_type")
    by_type = {family.name: family for family in _FAMILIES.values()}
    if model_type not in by_type:
        _unsupported(config, f"has the model_type {model_type[:100]!r}; there are {', '.join(by_type)}")
    return by_type[model_type]


def _check_features(config: Fields) -> None:
    if config.has("auto_map"):
        _unsupported(config, "has an auto_map: it asks for Python code of its own, which Headway never runs")
    if config.has("quantization_config"):
        method = config.mapping("quantization_config").get("quant_method", "unnamed")
        _unsupported(
            config,
            f"is quantised by {str(method)[:50]!r}, which is not supported: take the model unquantised, or a GGUF file "
            "of it",
        )
    if config.values.get("is_decoder") is False and config.values.get("is_causal") is False:
        _unsupported(config, "has bidirectional attention, which is not supported yet")


def _head_dim(config: Fields, family: _Family, hidden_size: int, num_heads: int) -> int:
    if config.has("head_dim") or family.head_dim is not None:
        head_dim = config.integer("head_dim", family.head_dim, high=1 << 16)
    else:
        if hidden_size % num_heads:
            config.fail("hidden_size", f"is {hidden_size}, not a multiple of {num_heads} heads")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        config.fail("head_dim", f"is {head_dim}; rotary positions need an even number")
    return head_dim


def _activation(config: Fields) -> Activation:
    name = config.string("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        _unsupported(config, f"has the activation {name[:50]!r}; there are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _dtype(config: Fields) -> str:
    """Newer files say dtype, older ones torch_dtype."""
    name = config.string("dtype", config.string("torch_dtype", "float32")).removeprefix("torch.")
    if name not in _DTYPES:
        _unsupported(config, f"has the dtype {name[:50]!r}; there are {', '.join(_DTYPES)}")
    return name


def _sliding_window(config: Fields, family: _Family, num_layers: int) -> int | None:
    """The window, or None where no layer has one. An explicit null is no window, a missing key is the default."""
    if family.window_needs_flag and not config.boolean("use_sliding_window", False):
        return None
    if "sliding_window" in config.values and config.values["sliding_window"] is None:
        return None
    if not config.has("sliding_window") and family.sliding_window is None:
        return None
    window = config.integer("sliding_window", family.sliding_window)
    layer_types = config.values.get("layer_types")
    if isinstance(layer_types, list):
        return window if "sliding_attention" in layer_types else None
    if family.name in ("qwen2", "qwen3") and config.integer("max_window_layers", 28, low=0) >= num_layers:
        return None
    return window


def _rope(config: Fields, family: _Family, head_dim: int, num_layers: int) -> RopeShape:
    """Older files say rope_theta and rope_scaling, newer ones put both into rope_parameters."""
    given = dict(config.mapping("rope_scaling") or config.mapping("rope_parameters"))
    if any(isinstance(value, dict) for value in given.values()):
        _unsupported(config, "has rotary positions that differ between kinds of layers")
    parameters = Fields(given, f"{config.where}: rope parameters")
    theta = parameters.number("rope_theta", config.number("rope_theta", family.theta))
    share = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    dims = int(head_dim * share)
    if not 0 < dims <= head_dim or dims % 2:
        config.fail("partial_rotary_factor", f"is {share}: {dims} of {head_dim} dimensions cannot be rotated")
    return RopeShape(
        theta=theta,
        dims=dims,
        scaling=_rope_scaling(config, parameters),
        skipped_layers=_skipped_layers(config, num_layers) if family.name == "smollm3" else frozenset(),
    )


def _rope_scaling(config: Fields, parameters: Fields) -> Mapping[str, Any]:
    kind = parameters.string("rope_type", parameters.string("type", "default"))
    if kind == "default":
        return {}
    left_out = ("rope_theta", "partial_rotary_factor", "type")
    scaling = {key: value for key, value in parameters.values.items() if key not in left_out and value is not None}
    scaling["rope_type"] = kind
    if kind in _WITH_ORIGINAL_LENGTH:
        # A value beside the parameters is the one that was trained with (Phi's files); transformers prefers it too.
        original, longest = "original_max_position_embeddings", config.integer("max_position_embeddings")
        scaling[original] = config.integer(original, parameters.integer(original, longest))
    return scaling


def _skipped_layers(config: Fields, num_layers: int) -> frozenset[int]:
    """no_rope_layers has a 1 for each layer with positions; without it each no_rope_layer_interval-th has none."""
    flags = config.values.get("no_rope_layers")
    if flags is None:
        interval = config.integer("no_rope_layer_interval", 4)
        return frozenset(layer for layer in range(num_layers) if (layer + 1) % interval == 0)
    if not isinstance(flags, list) or len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        config.fail("no_rope_layers", f"is not a list of 0 or 1 for each of {num_layers} layers")
    return frozenset(layer for layer in range(num_layers) if not flags[layer])


def _granite_scales(config: Fields) -> dict[str, Any]:
    return {
        "attention_scale": config.number("attention_multiplier", 1.0),
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logits_scale": 1.0 / config.number("logits_scaling", 1.0),
    }


def _unsupported(config: Fields, why: str) -> NoReturn:
    raise UnsupportedModel(f"{config.where} {why}")
