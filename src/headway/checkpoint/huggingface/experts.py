"""Mixtures of experts with the attention of Llama: Mixtral, Qwen2-MoE, Qwen3-MoE."""

from dataclasses import replace

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface.keys import Defaults, read_decoder, refuse, with_full_layers
from headway.checkpoint.huggingface.llama import OUTSIDE, PARTS
from headway.checkpoint.huggingface.tensors import TensorNames
from headway.checkpoint.shape import ExpertsShape, ModelShape

MAX_EXPERTS = 1024
MIXTRAL_NAMES = TensorNames(
    outside=OUTSIDE,
    parts=PARTS
    | {
        "block_sparse_moe.gate": "mlp.router",
        "block_sparse_moe.experts.*.w1": "mlp.experts.*.gate",
        "block_sparse_moe.experts.*.w2": "mlp.experts.*.down",
        "block_sparse_moe.experts.*.w3": "mlp.experts.*.up",
    },
)
EXPERT_PARTS = {
    "mlp.gate": "mlp.router",
    "mlp.experts.*.gate_proj": "mlp.experts.*.gate",
    "mlp.experts.*.up_proj": "mlp.experts.*.up",
    "mlp.experts.*.down_proj": "mlp.experts.*.down",
}
QWEN_NAMES = TensorNames(
    outside=OUTSIDE,
    parts=PARTS
    | EXPERT_PARTS
    | {
        "mlp.shared_expert.gate_proj": "mlp.shared.gate",
        "mlp.shared_expert.up_proj": "mlp.shared.up",
        "mlp.shared_expert.down_proj": "mlp.shared.down",
        "mlp.shared_expert_gate": "mlp.shared_gate",
    },
)

_MIXTRAL = Defaults(name="mixtral", num_kv_heads=8, norm_eps=1e-5, theta=1e6, qkv_bias=False)
_QWEN2 = Defaults(name="qwen2_moe", num_kv_heads=16, sliding_window=4096, window_needs_flag=True, qkv_bias=True)
_QWEN3 = Defaults(name="qwen3_moe", num_kv_heads=4, sliding_window=4096, window_needs_flag=True, has_qk_norm=True)


def read_mixtral(config: Fields) -> ModelShape:
    """MixtralForCausalLM: experts on all layers, whose shares add up to one."""
    shape = read_decoder(config, _MIXTRAL)
    num_experts, top_k = read_counts(config, "num_local_experts", 8, 2)
    experts = ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=shape.intermediate_size,
        layers=frozenset(range(shape.num_layers)),
        normalise=True,
    )
    return replace(shape, experts=experts)


def read_qwen2_moe(config: Fields) -> ModelShape:
    """Qwen2MoeForCausalLM. Every second layer of the first max_window_layers has the window, if there is one."""
    shape = replace(read_decoder(config, _QWEN2), has_qkv_bias=config.boolean("qkv_bias", True))
    num_windows = config.integer("max_window_layers", 28, low=0)
    shape = with_full_layers(
        config, shape, [layer for layer in range(shape.num_layers) if layer % 2 or layer >= num_windows]
    )
    experts = _read_qwen(config, shape, num_experts=60, top_k=4, width=1408)
    shared_width = config.integer("shared_expert_intermediate_size", 5632)
    return replace(shape, experts=replace(experts, shared_width=shared_width, has_shared_gate=True))


def read_qwen3_moe(config: Fields) -> ModelShape:
    """Qwen3MoeForCausalLM."""
    shape = read_decoder(config, _QWEN3)
    return replace(shape, experts=_read_qwen(config, shape, num_experts=128, top_k=8, width=768))


def _read_qwen(config: Fields, shape: ModelShape, *, num_experts: int, top_k: int, width: int) -> ExpertsShape:
    key = "num_local_experts" if config.has("num_local_experts") else "num_experts"
    num_experts, top_k = read_counts(config, key, num_experts, top_k)
    step = config.integer("decoder_sparse_step", 1)
    without = config.token_ids("mlp_only_layers")
    return ExpertsShape(
        num_experts=num_experts,
        top_k=top_k,
        width=config.integer("moe_intermediate_size", width),
        layers=frozenset(
            layer for layer in range(shape.num_layers) if layer not in without and (layer + 1) % step == 0
        ),
        normalise=config.boolean("norm_topk_prob", False),
    )


def read_counts(config: Fields, key: str, num_experts: int, top_k: int | None) -> tuple[int, int]:
    """How many experts there are, and how many of them each token is given."""
    num_experts = config.integer(key, num_experts)
    if num_experts > MAX_EXPERTS:
        refuse(config, f"has {num_experts} experts; at most {MAX_EXPERTS} are possible")
    return num_experts, config.integer("num_experts_per_tok", top_k, high=num_experts)
