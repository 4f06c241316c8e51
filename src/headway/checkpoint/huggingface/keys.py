"""What most config.json say alike, as a ModelShape: read_decoder over an architecture's Defaults.

A key that config.json leaves out has the default of transformers' configuration class, for the classes drop what is
equal to it; the sizes without which no model is meant must be there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.rope import read_rope
from headway.checkpoint.shape import Activation, ModelShape
from headway.errors import UnsupportedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """transformers' defaults of an architecture, and what its config.json does not say."""

    name: str
    """Of the architecture, ours."""
    num_kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: hidden_size / num_heads."""
    norm_eps: float = 1e-6
    theta: float = 10000.0
    rotary_share: float = 1.0
    """Of head_dim."""
    activation: str = "silu"
    activation_key: str = "hidden_act"
    is_tied: bool = False
    sliding_window: int | None = None
    window_needs_flag: bool = False
    """use_sliding_window must be true for the window to count."""
    qkv_bias: bool | None = None
    """None: attention_bias says, of q, k, v and o together."""
    has_mlp_bias_key: bool = False
    has_qk_norm: bool = False


def read_decoder(config: Fields, defaults: Defaults) -> ModelShape:
    """The numbers that Llama and its kin have; each layer has the window, if there is one."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", defaults.num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        config.fail("num_key_value_heads", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    head_dim = read_head_dim(config, defaults, hidden_size, num_heads)
    has_attention_bias = config.boolean("attention_bias", False) if defaults.qkv_bias is None else False
    return ModelShape(
        architecture=defaults.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_position=config.integer("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps", defaults.norm_eps),
        rope=read_rope(config, head_dim, theta=defaults.theta, share=defaults.rotary_share),
        activation=read_activation(config, defaults.activation_key, defaults.activation),
        has_qkv_bias=has_attention_bias if defaults.qkv_bias is None else defaults.qkv_bias,
        has_o_bias=has_attention_bias,
        has_mlp_bias=defaults.has_mlp_bias_key and config.boolean("mlp_bias", False),
        has_qk_norm=defaults.has_qk_norm,
        is_tied=config.boolean("tie_word_embeddings", defaults.is_tied),
        sliding_window=read_window(config, defaults),
        dtype=read_dtype(config),
    )


def num_layers(config: Fields, key: str = "num_hidden_layers") -> int:
    """How many there are."""
    return config.integer(key, high=10_000)


def read_head_dim(config: Fields, defaults: Defaults, hidden_size: int, num_heads: int) -> int:
    """head_dim, or what hidden_size leaves for each head."""
    if config.has("head_dim") or defaults.head_dim is not None:
        head_dim = config.integer("head_dim", defaults.head_dim, high=1 << 16)
    else:
        head_dim = share_of_heads(config, hidden_size, num_heads, "hidden_size")
    if head_dim % 2:
        config.fail("head_dim", f"is {head_dim}; rotary positions need an even number")
    return head_dim


def share_of_heads(config: Fields, hidden_size: int, num_heads: int, key: str) -> int:
    """hidden_size / num_heads."""
    if hidden_size % num_heads:
        config.fail(key, f"is {hidden_size}, not a multiple of {num_heads} heads")
    return hidden_size // num_heads


_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read_activation(config: Fields, key: str, default: str) -> Activation:
    """By transformers' name."""
    name = config.string(key, default)
    if name not in _ACTIVATIONS:
        refuse(config, f"has the activation {name[:50]!r}; there are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


_DTYPES = ("float32", "float16", "bfloat16")


def read_dtype(config: Fields) -> str:
    """Newer files say dtype, older ones torch_dtype."""
    name = config.string("dtype", config.string("torch_dtype", "float32")).removeprefix("torch.")
    if name not in _DTYPES:
        refuse(config, f"has the dtype {name[:50]!r}; there are {', '.join(_DTYPES)}")
    return name


def read_window(config: Fields, defaults: Defaults) -> int | None:
    """The window of the layers that have one. An explicit null is none, a missing key is the default."""
    if defaults.window_needs_flag and not config.boolean("use_sliding_window", False):
        return None
    if "sliding_window" in config.values and config.values["sliding_window"] is None:
        return None
    if not config.has("sliding_window") and defaults.sliding_window is None:
        return None
    return config.integer("sliding_window", defaults.sliding_window)


def with_full_layers(config: Fields, shape: ModelShape, full_layers: Sequence[int]) -> ModelShape:
    """The shape where these layers see everything, or those that layer_types says; without a window all do."""
    if shape.sliding_window is None:
        return shape
    kinds = config.values.get("layer_types")
    if kinds is not None:
        full_layers = _full_layers(config, kinds, shape.num_layers)
    full = frozenset(full_layers)
    if len(full) == shape.num_layers:
        return replace(shape, sliding_window=None)
    return replace(shape, full_layers=full)


def _full_layers(config: Fields, kinds: object, count: int) -> list[int]:
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != count:
        config.fail("layer_types", f"is not a list of a kind for each of {count} layers")
    if others := [kind for kind in kinds if kind not in known]:
        refuse(config, f"has layers of the type {str(others[0])[:50]!r}; there are {', '.join(known)}")
    return [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]


def refuse(config: Fields, why: str) -> NoReturn:
    """Raises UnsupportedModel about this configuration."""
    raise UnsupportedModel(f"{config.where} {why}")
