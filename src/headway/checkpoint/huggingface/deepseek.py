"""DeepSeek V2 and V3: latent attention, experts behind the first layers."""

from dataclasses import replace

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.experts import EXPERT_PARTS, read_counts
from headway.checkpoint.huggingface.keys import Defaults, read_decoder, refuse
from headway.checkpoint.huggingface.llama import OUTSIDE, PARTS
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.pieces import key_and_value_up, latent_and_rope
from headway.checkpoint.shape import ExpertsShape, LatentShape, ModelShape

NAMES = TensorNames(
    outside=OUTSIDE,
    parts=PARTS
    | EXPERT_PARTS
    | {
        "self_attn.q_a_proj": "attn.q_a",
        "self_attn.q_a_layernorm": "attn.q_a_norm",
        "self_attn.q_b_proj": "attn.q_b",
        "self_attn.kv_a_proj_with_mqa": latent_and_rope,
        "self_attn.kv_a_layernorm": "attn.latent_norm",
        "self_attn.kv_b_proj": key_and_value_up,
        "mlp.shared_experts.gate_proj": "mlp.shared.gate",
        "mlp.shared_experts.up_proj": "mlp.shared.up",
        "mlp.shared_experts.down_proj": "mlp.shared.down",
    },
    whole={"mlp.gate.e_score_correction_bias": "mlp.choice.bias"},
    drops_more_layers=True,
)
_V2 = Defaults(name="deepseek_v2", has_mlp_bias_key=True)
_V3 = Defaults(name="deepseek_v3")


def read_v2(config: Fields) -> ModelShape:
    """DeepseekV2ForCausalLM: a softmax; the best experts of all, or of the best groups."""
    method = config.string("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        refuse(config, f"has the topk_method {method[:50]!r}; there are greedy and group_limited_greedy")
    if config.boolean("norm_topk_prob", False):
        refuse(config, "has norm_topk_prob, which transformers' DeepSeek-V2 does not have: set it to false")
    shape = _read_latent(config, _V2)
    if shape.has_mlp_bias:
        refuse(config, "has mlp_bias: experts with biases are not supported")
    experts = _read_experts(config, shape, num_experts=64, top_k=None, width=1407, num_shared=2, first=0, scale=1.0)
    if method == "group_limited_greedy":
        experts = _with_groups(config, experts, None, None)
    return replace(shape, experts=experts)


def read_v3(config: Fields) -> ModelShape:
    """DeepseekV3ForCausalLM: sigmoids, with a bias for the choice; the best experts of the best groups."""
    if not config.boolean("rope_interleave", True):
        refuse(config, "has rope_interleave false, which is not supported")
    shape = _read_latent(config, _V3)
    experts = _read_experts(config, shape, num_experts=256, top_k=8, width=2048, num_shared=1, first=3, scale=2.5)
    experts = replace(
        _with_groups(config, experts, 8, 4),
        scoring="sigmoid",
        has_choice_bias=True,
        group_score="two_largest",
        normalise=config.boolean("norm_topk_prob", True),
    )
    return replace(shape, experts=experts)


def _read_latent(config: Fields, defaults: Defaults) -> ModelShape:
    q_rank = None if "q_lora_rank" in config.values and not config.has("q_lora_rank") else 1536
    latent = LatentShape(
        q_rank=q_rank and config.integer("q_lora_rank", q_rank),
        kv_rank=config.integer("kv_lora_rank", 512),
        nope_dim=config.integer("qk_nope_head_dim", 128),
        rope_dim=config.integer("qk_rope_head_dim", 64),
        v_dim=config.integer("v_head_dim", 128),
    )
    heads = config.integer("num_attention_heads")
    # Only the columns with positions turn, and each head has a key of its own, made of the latent.
    as_decoder = {**config.values, "head_dim": latent.rope_dim, "num_key_value_heads": heads}
    shape = read_decoder(Fields(as_decoder, config.where), defaults)
    return replace(shape, latent=latent, head_dim=latent.nope_dim + latent.rope_dim)


def _read_experts(
    config: Fields,
    shape: ModelShape,
    *,
    num_experts: int,
    top_k: int | None,
    width: int,
    num_shared: int,
    first: int,
    scale: float,
) -> ExpertsShape:
    """The arguments are transformers' defaults."""
    num_experts, top_k = read_counts(config, "n_routed_experts", num_experts, top_k)
    width = config.integer("moe_intermediate_size", width)
    return ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=width,
        layers=frozenset(range(config.integer("first_k_dense_replace", first, low=0), shape.num_layers)),
        scale=config.number("routed_scaling_factor", scale),
        shared_width=width * config.integer("n_shared_experts", num_shared, low=0),
    )


def _with_groups(config: Fields, experts: ExpertsShape, num_groups: int | None, top_groups: int | None) -> ExpertsShape:
    num_groups = config.integer("n_group", num_groups)
    if experts.num_experts % num_groups:
        config.fail("n_group", f"is {num_groups}, which does not divide {experts.num_experts} experts")
    top_groups = config.integer("topk_group", top_groups, high=num_groups)
    if experts.num_experts // num_groups * top_groups < experts.top_k:
        config.fail("topk_group", f"is {top_groups}: these groups have no {experts.top_k} experts")
    return replace(experts, num_groups=num_groups, top_groups=top_groups)
