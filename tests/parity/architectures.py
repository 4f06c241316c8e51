"""Small random models of each architecture, saved by transformers with every weight noisy, norms and biases too."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.model import make_program

VOCAB = 128
WINDOW = 6

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 96}
GPT2_SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
OPT_SIZES = {key: value for key, value in SIZES.items() if key not in ("intermediate_size", "num_key_value_heads")}
OPT_SIZES |= {"ffn_dim": 96, "word_embed_proj_dim": 64}
LOCAL_AND_FULL = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
SHORT, LONG = [1.0 + 0.1 * pair for pair in range(6)], [1.0 + 0.5 * pair for pair in range(6)]


def longrope(original: int, **more: Any) -> dict[str, Any]:
    """Of Phi-4-mini's kind: three quarters of each head of 16 turn. `original` is where long runs begin."""
    parameters = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, **more}
    parameters |= {"rope_theta": 1e4, "partial_rotary_factor": 0.75}
    return {"original_max_position_embeddings": original, "rope_parameters": parameters}


@dataclasses.dataclass(frozen=True)
class Case:
    """A class of transformers and what its configuration says."""

    architecture: str
    config: dict[str, Any]
    sizes: dict[str, Any] = dataclasses.field(default_factory=lambda: SIZES)


CASES = {
    "gpt2": Case("GPT2LMHeadModel", {}, GPT2_SIZES),
    "gpt2-unscaled-untied": Case(
        "GPT2LMHeadModel", {"scale_attn_weights": False, "tie_word_embeddings": False}, GPT2_SIZES
    ),
    "opt": Case("OPTForCausalLM", {}, OPT_SIZES),
    "opt-350m": Case("OPTForCausalLM", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}, OPT_SIZES),
    "opt-no_bias": Case("OPTForCausalLM", {"enable_bias": False, "activation_function": "gelu"}, OPT_SIZES),
    "gpt_neox": Case("GPTNeoXForCausalLM", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
    "gpt_neox-sequential": Case(
        "GPTNeoXForCausalLM", {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}
    ),
    "gemma2": Case(
        "Gemma2ForCausalLM",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 20,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        {
            **LOCAL_AND_FULL,
            "head_dim": 32,
            "query_pre_attn_scalar": 20,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": Case("Phi3ForCausalLM", {"sliding_window": WINDOW}),
    "phi3-longrope_short": Case("Phi3ForCausalLM", longrope(128)),
    # From its second token on a sequence is long; at position 0 nothing turns.
    "phi3-longrope_long": Case("Phi3ForCausalLM", longrope(1, attention_factor=1.19)),
    "olmo2": Case("Olmo2ForCausalLM", {}),
    "qwen2-late_window": Case(
        "Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    "qwen3-layer_types": Case("Qwen3ForCausalLM", {**LOCAL_AND_FULL, "use_sliding_window": True, "head_dim": 32}),
    "smollm3-window": Case(
        "SmolLM3ForCausalLM", {"use_sliding_window": True, "sliding_window": WINDOW, "no_rope_layers": [1, 0]}
    ),
}


def save_model(case: Case, folder: Path) -> torch.nn.Module:
    """transformers' model of a case, in the folder with a tokenizer of no words."""
    torch.manual_seed(0)
    name = case.architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    config_class = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    config = config_class(**{**case.sizes, **case.config}, attn_implementation="eager")
    model: torch.nn.Module = getattr(transformers, case.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {}}))
    return model


class Saved:
    """A model of transformers, and what we make of its folder."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.model = save_model(case, folder)
        self.checkpoint: Checkpoint = open_checkpoint(folder)
        self.program = make_program(self.checkpoint.shape)

    def logits(self, ids: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].float().numpy()
