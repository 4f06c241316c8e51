"""GPT-2, GPT-NeoX and OPT: layer norms, biases, an MLP without a gate."""

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.keys import num_layers, read_activation, read_dtype, refuse, share_of_heads
from headway.checkpoint.huggingface.rope import read_rope
from headway.checkpoint.huggingface.tensors import ROTARY, TensorNames
from headway.checkpoint.pieces import qkv_by_head, stacked_qkv
from headway.checkpoint.shape import ModelShape

GPT2_NAMES = TensorNames(
    outside={
        f"{prefix}{name}": canonical
        for prefix in ("transformer.", "")  # the hub's own file was saved without the head
        for name, canonical in {
            "wte.weight": "embed.weight",
            "wpe.weight": "positions.weight",
            "ln_f.weight": "final_norm.weight",
            "ln_f.bias": "final_norm.bias",
        }.items()
    },
    layers=r"(?:transformer\.)?h",
    parts={
        "ln_1": "attn_norm",
        "attn.c_attn": stacked_qkv,
        "attn.c_proj": "attn.o",
        "ln_2": "mlp_norm",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
    },
    transposed=frozenset({"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}),
    derived=r"(.*\.)?attn\.(bias|masked_bias)",
)

NEOX_NAMES = TensorNames(
    outside={
        "gpt_neox.embed_in.weight": "embed.weight",
        "gpt_neox.final_layer_norm.weight": "final_norm.weight",
        "gpt_neox.final_layer_norm.bias": "final_norm.bias",
        "embed_out.weight": "lm_head.weight",
    },
    layers=r"gpt_neox\.layers",
    parts={
        "input_layernorm": "attn_norm",
        "attention.query_key_value": qkv_by_head,
        "attention.dense": "attn.o",
        "post_attention_layernorm": "mlp_norm",
        "mlp.dense_h_to_4h": "mlp.up",
        "mlp.dense_4h_to_h": "mlp.down",
    },
    derived=rf"(.*\.)?attention\.(bias|masked_bias)|{ROTARY}",
)

OPT_NAMES = TensorNames(
    outside={
        f"{prefix}decoder.{name}": canonical
        for prefix in ("model.", "")  # the hub's older files
        for name, canonical in {
            "embed_tokens.weight": "embed.weight",
            "embed_positions.weight": "positions.weight",
            "project_in.weight": "embed_in.weight",
            "project_out.weight": "embed_out.weight",
            "final_layer_norm.weight": "final_norm.weight",
            "final_layer_norm.bias": "final_norm.bias",
        }.items()
    },
    layers=r"(?:model\.)?decoder\.layers",
    parts={
        "self_attn_layer_norm": "attn_norm",
        "self_attn.q_proj": "attn.q",
        "self_attn.k_proj": "attn.k",
        "self_attn.v_proj": "attn.v",
        "self_attn.out_proj": "attn.o",
        "final_layer_norm": "mlp_norm",
        "fc1": "mlp.up",
        "fc2": "mlp.down",
    },
)
_OPT_NORM_EPS = 1e-5  # torch's default: config.json has no key for it


def read_gpt2(config: Fields) -> ModelShape:
    """GPT2LMHeadModel."""
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if config.boolean(key, False):
            refuse(config, f"has {key}, which is not supported")
    hidden_size, num_heads = config.integer("n_embd"), config.integer("n_head")
    return ModelShape(
        architecture="gpt2",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config, "n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=share_of_heads(config, hidden_size, num_heads, "n_embd"),
        intermediate_size=config.integer("n_inner", 4 * hidden_size),
        max_position=config.integer("n_positions"),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        rope=None,
        activation=read_activation(config, "activation_function", "gelu_new"),
        has_qkv_bias=True,
        has_o_bias=True,
        has_mlp_bias=True,
        is_tied=config.boolean("tie_word_embeddings", True),
        attention_scale=None if config.boolean("scale_attn_weights", True) else 1.0,
        dtype=read_dtype(config),
    )


def read_gpt_neox(config: Fields) -> ModelShape:
    """GPTNeoXForCausalLM; older files have rotary_pct and rotary_emb_base."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = share_of_heads(config, hidden_size, num_heads, "hidden_size")
    has_attention_bias = config.boolean("attention_bias", True)
    theta, share = config.number("rotary_emb_base", 10000.0), config.number("rotary_pct", 0.25)
    return ModelShape(
        architecture="gpt_neox",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_position=config.integer("max_position_embeddings"),
        norm_eps=config.number("layer_norm_eps", 1e-5),
        rope=read_rope(config, head_dim, theta=theta, share=share),
        activation=read_activation(config, "hidden_act", "gelu"),
        has_qkv_bias=has_attention_bias,
        has_o_bias=has_attention_bias,
        has_mlp_bias=True,
        is_tied=config.boolean("tie_word_embeddings", False),
        is_parallel=config.boolean("use_parallel_residual", True),
        dtype=read_dtype(config),
    )


def read_opt(config: Fields) -> ModelShape:
    """OPTForCausalLM."""
    if not config.boolean("layer_norm_elementwise_affine", True):
        refuse(config, "has layer norms without weights, which is not supported")
    is_post_norm = not config.boolean("do_layer_norm_before", True)
    if config.boolean("_remove_final_layer_norm", False) and not is_post_norm:
        refuse(config, "has no final norm, which is not supported: convert it with transformers from 4.20.1 on")
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    embedding_size = config.integer("word_embed_proj_dim", hidden_size)
    has_bias = config.boolean("enable_bias", True)
    return ModelShape(
        architecture="opt",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=share_of_heads(config, hidden_size, num_heads, "hidden_size"),
        intermediate_size=config.integer("ffn_dim"),
        max_position=config.integer("max_position_embeddings"),
        norm_eps=_OPT_NORM_EPS,
        rope=None,
        activation=read_activation(config, "activation_function", "relu"),
        has_qkv_bias=has_bias,
        has_o_bias=has_bias,
        has_mlp_bias=has_bias,
        is_tied=config.boolean("tie_word_embeddings", True),
        is_post_norm=is_post_norm,
        embedding_size=None if embedding_size == hidden_size else embedding_size,
        dtype=read_dtype(config),
    )
