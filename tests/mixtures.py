"""Small random mixtures of experts, made by transformers, as folders that both executors read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import BPE

VOCAB = 128
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
}
QWEN: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.707,
    "mscale_all_dim": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 6}),
    "qwen2_moe": ("Qwen2Moe", {**QWEN, "shared_expert_intermediate_size": 72}),
    "qwen2_moe-layers": (
        "Qwen2Moe",
        {
            **QWEN,
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "shared_expert_intermediate_size": 32,
            "qkv_bias": False,
        },
    ),
    "qwen3_moe": ("Qwen3Moe", {**QWEN, "head_dim": 32, "norm_topk_prob": True}),
    "deepseek_v2": ("DeepseekV2", {**LATENT, "q_lora_rank": None, "n_shared_experts": 2}),
    "deepseek_v2-groups": (
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": 48,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "rope_parameters": YARN,
        },
    ),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "q_lora_rank": 48, "n_group": 4, "topk_group": 2}),
    "deepseek_v3-yarn": (
        "DeepseekV3",
        {
            **LATENT,
            "q_lora_rank": 48,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "attention_bias": True,
            "rope_parameters": YARN,
        },
    ),
}


def make_model(name: str, **changes: Any) -> torch.nn.Module:
    """transformers' model, every parameter random, router and choice too, and of values that bfloat16 holds."""
    prefix, numbers = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **numbers, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and "inv_freq" not in key:
                tensor.add_(torch.randn_like(tensor) * (0.3 if ".gate." in key else 0.1))
                tensor.copy_(tensor.bfloat16().float())
    return model


def save(model: torch.nn.Module, folder: Path) -> Path:
    """The model as a folder with the smallest tokenizer that a checkpoint may have: only ids matter here."""
    model.save_pretrained(folder)
    Tokenizer(BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def logits_of(model: torch.nn.Module, ids: list[int]) -> Any:
    """[len(ids), vocab] in float32."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()
