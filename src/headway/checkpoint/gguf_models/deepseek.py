"""deepseek2: DeepSeek V2 and V3, which differ in how experts are chosen.

Newer files hold what the latent is multiplied by as attn_k_b and attn_v_b, each head's key part with rows and columns
exchanged, and describe attention as if it had one key head as wide as the latent; older ones have attn_kv_b.
"""

from dataclasses import replace
from typing import Any

from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models.decoder import read_decoder
from headway.checkpoint.gguf_models.experts import EXPERT_SPLITS, read_experts
from headway.checkpoint.gguf_models.keys import Keys
from headway.checkpoint.gguf_models.tensors import GgufNames
from headway.checkpoint.pieces import key_and_value_up, latent_and_rope
from headway.checkpoint.shape import ExpertsShape, LatentShape, ModelShape
from headway.errors import UnsupportedModel

NAMES = GgufNames(splits={"attn_kv_a_mqa": latent_and_rope, "attn_kv_b": key_and_value_up, **EXPERT_SPLITS})
_SOFTMAX, _SIGMOID = 1, 2  # llama.cpp's expert_gating_func


def read_deepseek2(file: GgufFile, keys: Keys) -> ModelShape:
    """The shape, with its latent and its experts."""
    latent = _read_latent(keys)
    shape = read_decoder(file, _as_decoder(keys, latent), "deepseek_v2")
    scaling = _scaling(keys, {} if shape.rope is None else shape.rope.scaling)
    experts = _read_choice(file, keys, shape)
    return replace(
        shape,
        architecture="deepseek_v3" if experts.scoring == "sigmoid" else "deepseek_v2",
        latent=latent,
        rope=shape.rope and replace(shape.rope, scaling=scaling),
        experts=experts,
    )


def _read_latent(keys: Keys) -> LatentShape:
    kv_rank, rope_dim = keys.integer("attention.kv_lora_rank"), keys.integer("rope.dimension_count")
    suffix = "_mla" if keys.has("attention.key_length_mla") else ""
    head_dim = keys.integer(f"attention.key_length{suffix}")
    if head_dim <= rope_dim:
        keys.fields.fail(keys.name(f"attention.key_length{suffix}"), f"is {head_dim}, {rope_dim} of it with positions")
    return LatentShape(
        q_rank=keys.integer("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
        kv_rank=kv_rank,
        nope_dim=head_dim - rope_dim,
        rope_dim=rope_dim,
        v_dim=keys.integer(f"attention.value_length{suffix}"),
    )


def _as_decoder(keys: Keys, latent: LatentShape) -> Keys:
    """With each head's key as its own, as it is when made of the latent."""
    head_dim = latent.nope_dim + latent.rope_dim
    changed: dict[str, Any] = {"key_length": head_dim, "value_length": head_dim}
    changed["head_count_kv"] = keys.layered("attention.head_count")
    values = {**keys.fields.values, **{keys.name(f"attention.{key}"): value for key, value in changed.items()}}
    return Keys(Fields(values, keys.where), keys.architecture)


def _scaling(keys: Keys, scaling: Any) -> Any:
    """The file says 0.1 times mscale_all_dim; mscale is the same in all models that there are."""
    if scaling.get("rope_type") != "yarn" or not keys.has("rope.scaling.yarn_log_multiplier"):
        return scaling
    weight = round(keys.number("rope.scaling.yarn_log_multiplier") / 0.1, 6)
    return {**scaling, "mscale": weight, "mscale_all_dim": weight}


def _read_choice(file: GgufFile, keys: Keys, shape: ModelShape) -> ExpertsShape:
    experts = read_experts(file, keys, shape, None)
    scoring = keys.integer("expert_gating_func", _SOFTMAX, low=0)
    if scoring not in (_SOFTMAX, _SIGMOID):
        raise UnsupportedModel(f"{keys.where}: expert_gating_func {scoring}; 1 (softmax) and 2 (sigmoid) are supported")
    num_groups = keys.integer("expert_group_count", 1)
    if experts.num_experts % num_groups:
        keys.fields.fail(keys.name("expert_group_count"), f"is {num_groups}, of {experts.num_experts} experts")
    first = min(experts.layers, default=0)
    return replace(
        experts,
        scoring="sigmoid" if scoring == _SIGMOID else "softmax",
        has_choice_bias=f"blk.{first}.exp_probs_b.bias" in file.tensors,
        num_groups=num_groups,
        top_groups=keys.integer("expert_group_used_count", num_groups, high=num_groups),
        group_score="two_largest" if scoring == _SIGMOID else "largest",
        normalise=keys.fields.boolean(keys.name("expert_weights_norm"), False),
        scale=keys.number("expert_weights_scale", 1.0),
        shared_width=experts.width * keys.integer("expert_shared_count", 0, low=0),
    )
