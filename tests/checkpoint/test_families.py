"""What each family's configuration and tensor names say beyond Llama's; that the numbers are right shows in parity/."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.fields import Fields
from headway.checkpoint.ggml_types import dequantise
from headway.checkpoint.huggingface import read_shape
from headway.checkpoint.shape import ModelShape, RopeShape
from headway.errors import CorruptCheckpoint, UnsupportedModel
from parity.architectures import CASES, save_model

LLAMA_SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GPT2_SIZES = {"vocab_size": 32, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
OPT_SIZES = {key: value for key, value in LLAMA_SIZES.items() if key != "intermediate_size"} | {"ffn_dim": 96}
SIZES = {
    "OPTForCausalLM": OPT_SIZES,
    "GPT2LMHeadModel": GPT2_SIZES,
    **dict.fromkeys((f"{name}ForCausalLM" for name in ("GPTNeoX", "Gemma2", "Gemma3", "Phi3", "SmolLM3")), LLAMA_SIZES),
    **dict.fromkeys(("Qwen2ForCausalLM", "Qwen3ForCausalLM"), LLAMA_SIZES | {"num_key_value_heads": 2}),
}


def shape_of(architecture: str, **changes: Any) -> ModelShape:
    values = {"architectures": [architecture], **SIZES[architecture], **changes}
    return read_shape(Fields({key: value for key, value in values.items() if value != "left out"}, "config.json"))


def config_of(architecture: str, **changes: Any) -> Any:
    name = architecture.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    name = "Gemma3Text" if name == "Gemma3" else name
    return getattr(transformers, f"{name}Config")(**{**SIZES[architecture], **changes})


def windows(shape: ModelShape) -> list[int | None]:
    return [shape.window(layer) for layer in range(shape.num_layers)]


def windows_of(config: Any) -> list[int | None]:
    return [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]


def test_gpt2s_defaults_are_transformers() -> None:
    shape, config = shape_of("GPT2LMHeadModel"), config_of("GPT2LMHeadModel")
    assert shape.rope is None
    assert (shape.norm_eps, shape.is_tied) == (config.layer_norm_epsilon, config.tie_word_embeddings)
    assert (shape.intermediate_size, shape.num_kv_heads, shape.head_dim) == (256, 4, 16)
    assert (shape.activation, config.activation_function) == ("gelu_tanh", "gelu_new")


def test_opts_defaults_are_transformers() -> None:
    shape, config = shape_of("OPTForCausalLM"), config_of("OPTForCausalLM")
    assert (shape.activation, shape.is_tied) == (config.activation_function, config.tie_word_embeddings)
    assert shape.is_post_norm is not config.do_layer_norm_before
    assert (shape.has_qkv_bias, shape.has_o_bias, shape.has_mlp_bias) == (config.enable_bias,) * 3
    assert (shape.embedding_size, config.word_embed_proj_dim) == (None, 64)
    assert shape_of("OPTForCausalLM", word_embed_proj_dim=32).embedding_size == 32


def test_gpt_neoxs_defaults_are_transformers_and_older_words_are_read() -> None:
    shape, config = shape_of("GPTNeoXForCausalLM"), config_of("GPTNeoXForCausalLM")
    assert shape.rope == RopeShape(
        theta=config.rope_parameters["rope_theta"], dims=int(16 * config.rope_parameters["partial_rotary_factor"])
    )
    assert (shape.norm_eps, shape.is_tied, shape.is_parallel) == (config.layer_norm_eps, False, True)
    assert (shape.activation, shape.has_qkv_bias) == (config.hidden_act, config.attention_bias)
    older = shape_of("GPTNeoXForCausalLM", rotary_pct=0.5, rotary_emb_base=5000)
    assert older.rope == RopeShape(theta=5000.0, dims=8)


def test_gemma2s_defaults_are_transformers() -> None:
    shape, config = shape_of("Gemma2ForCausalLM"), config_of("Gemma2ForCausalLM")
    assert (shape.head_dim, shape.num_kv_heads) == (config.head_dim, config.num_key_value_heads)
    assert (shape.norm_eps, shape.is_tied) == (config.rms_norm_eps, config.tie_word_embeddings)
    assert shape.attention_scale == config.query_pre_attn_scalar**-0.5
    assert shape.attention_soft_cap == config.attn_logit_softcapping
    assert shape.logits_soft_cap == config.final_logit_softcapping
    assert (shape.embedding_scale, shape.activation) == (8.0, "gelu_tanh")
    assert windows(shape) == windows_of(config)
    uncapped = shape_of("Gemma2ForCausalLM", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (uncapped.attention_soft_cap, uncapped.logits_soft_cap) == (None, None)


def test_gemma3s_defaults_are_transformers() -> None:
    shape, config = shape_of("Gemma3ForCausalLM"), config_of("Gemma3ForCausalLM")
    assert shape.rope == RopeShape(theta=config.rope_parameters["full_attention"]["rope_theta"], dims=256)
    assert shape.local_rope == RopeShape(theta=config.rope_parameters["sliding_attention"]["rope_theta"], dims=256)
    assert (shape.attention_soft_cap, shape.logits_soft_cap) == (None, None)
    assert windows(shape) == windows_of(config)
    assert shape.has_qk_norm


def test_both_spellings_of_gemma3s_positions_are_read() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = shape_of("Gemma3ForCausalLM", rope_theta=1e5, rope_local_base_freq=5e3, rope_scaling=linear)
    newer = shape_of(
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": linear | {"rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
    )
    assert older == newer
    assert older.rope == RopeShape(theta=1e5, dims=256, scaling=linear)
    assert older.local_rope == RopeShape(theta=5e3, dims=256)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window_pattern": 3},
        {"layer_types": ["full_attention"] * 11 + ["sliding_attention"]},
        {"layer_types": ["full_attention"] * 12},
    ],
)
def test_gemma3s_windows_are_where_transformers_has_them(changes: dict[str, Any]) -> None:
    assert windows(shape_of("Gemma3ForCausalLM", **changes)) == windows_of(config_of("Gemma3ForCausalLM", **changes))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_sliding_window": True, "max_window_layers": 5},
        {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 7},
        {"use_sliding_window": True},
        {"use_sliding_window": True, "layer_types": ["sliding_attention"] + ["full_attention"] * 11},
        {"use_sliding_window": False, "max_window_layers": 0},
    ],
)
def test_qwens_windows_are_where_transformers_has_them(architecture: str, changes: dict[str, Any]) -> None:
    assert windows(shape_of(architecture, **changes)) == windows_of(config_of(architecture, **changes))


def test_smollm3s_windows_are_on_the_layers_without_positions() -> None:
    changes = {"use_sliding_window": True, "sliding_window": 8}
    shape, config = shape_of("SmolLM3ForCausalLM", **changes), config_of("SmolLM3ForCausalLM", **changes)
    assert windows(shape) == windows_of(config) == [None, None, None, 8] * 3


FACTORS = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_phi3s_longrope_has_three_names_and_a_length_of_4096_where_none_is_given(kind: str) -> None:
    changes = {"rope_scaling": {"type": kind, **FACTORS}, "partial_rotary_factor": 0.75}
    shape = shape_of("Phi3ForCausalLM", **changes, max_position_embeddings=8192)
    assert shape.rope == RopeShape(
        dims=12, scaling={"rope_type": "longrope", "original_max_position_embeddings": 4096, **FACTORS}
    )
    assert (shape.norm_eps, shape.sliding_window) == (1e-5, None)


def test_phi3s_own_code_beside_the_weights_is_no_reason_to_refuse() -> None:
    assert shape_of("Phi3ForCausalLM", auto_map={"AutoModelForCausalLM": "modeling_phi3.Mine"}).architecture == "phi3"


UNSUPPORTED = [
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention"),
    ("OPTForCausalLM", {"layer_norm_elementwise_affine": False}, "without weights"),
    ("OPTForCausalLM", {"_remove_final_layer_norm": True}, "no final norm"),
    ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "bidirectional"),
    ("Gemma2ForCausalLM", {"layer_types": ["chunked_attention"] * 12}, "'chunked_attention'; there are full_att"),
    ("Qwen2ForCausalLM", {"auto_map": {"AutoModel": "modeling.Mine"}}, "auto_map"),
]
CORRUPT = [
    ("GPT2LMHeadModel", {"n_embd": "left out"}, "n_embd is missing"),
    ("GPT2LMHeadModel", {"n_head": 5}, "n_embd is 64, not a multiple of 5 heads"),
    ("OPTForCausalLM", {"ffn_dim": 0}, "ffn_dim is 0"),
    ("GPTNeoXForCausalLM", {"rotary_pct": 2.0}, "partial_rotary_factor is 2.0"),
    ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ("Gemma2ForCausalLM", {"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
    ("Gemma2ForCausalLM", {"layer_types": ["full_attention"]}, "a kind for each of 12 layers"),
    ("Gemma3ForCausalLM", {"rope_parameters": {"full_attention": {}, "sliding_attention": 3}}, "sliding_attention is"),
]


@pytest.mark.parametrize(("architecture", "changes", "words"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(architecture: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        shape_of(architecture, **changes)


@pytest.mark.parametrize(("architecture", "changes", "words"), CORRUPT)
def test_wrong_values_name_their_key(architecture: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        shape_of(architecture, **changes)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_and_transposed_tensors_are_the_same_raw_as_read(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    save_model(CASES[name], tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({key: value.to(dtype) for key, value in load_file(path).items()}, path, {"format": "pt"})
    weights = open_checkpoint(tmp_path).weights
    matrices = [key for key, shape in weights.shapes().items() if len(shape) == 2]
    assert len(matrices) > 12
    for key in matrices:
        raw = weights.raw(key)
        values = dequantise(raw.type, raw.data).reshape(raw.shape)
        np.testing.assert_array_equal(values, weights.read(key), err_msg=key)
        weights.release(key, (0, raw.num_rows // 2))
        weights.release(key, (raw.num_rows // 2, raw.num_rows))
        np.testing.assert_array_equal(weights.read(key), values, err_msg=key)


def test_fused_rows_that_lie_together_are_views_of_the_file(tmp_path: Path) -> None:
    save_model(CASES["phi3"], tmp_path)
    weights = open_checkpoint(tmp_path).weights
    q, k = (weights.raw(f"layers.0.attn.{part}.weight") for part in "qk")
    gate, up = (weights.raw(f"layers.0.mlp.{part}.weight") for part in ("gate", "up"))
    for first, second in ((q, k), (gate, up)):
        assert second.data.ctypes.data == first.data.ctypes.data + first.data.size
        assert not first.data.flags.owndata


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_the_hubs_older_names_and_masks_are_read(tmp_path: Path, name: str, prefix: str) -> None:
    save_model(CASES[name], tmp_path)
    before = open_checkpoint(tmp_path).weights
    path = tmp_path / "model.safetensors"
    tensors = {key.removeprefix(prefix): value for key, value in load_file(path).items()}
    if name == "gpt2":
        tensors |= {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.ones(1)}
    save_file(tensors, path, {"format": "pt"})
    after = open_checkpoint(tmp_path).weights
    assert after.shapes() == before.shapes()


@pytest.mark.parametrize("head", ["embed_out.weight", "lm_head.weight"])
def test_pythias_masks_are_ignored_and_its_head_has_two_names(tmp_path: Path, head: str) -> None:
    save_model(CASES["gpt_neox"], tmp_path)
    before = open_checkpoint(tmp_path).weights
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[head] = tensors.pop("embed_out.weight" if "embed_out.weight" in tensors else "lm_head.weight")
    at = "gpt_neox.layers.0.attention"
    tensors |= {f"{at}.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool), f"{at}.masked_bias": torch.ones(())}
    tensors |= {f"{at}.rotary_emb.inv_freq": torch.ones(2)}
    save_file(tensors, path, {"format": "pt"})
    after = open_checkpoint(tmp_path).weights
    assert after.shapes() == before.shapes()
    np.testing.assert_array_equal(after.read("lm_head.weight"), before.read("lm_head.weight"))


def test_a_fused_tensor_of_another_height_is_corrupt(tmp_path: Path) -> None:
    save_model(CASES["phi3"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    with pytest.raises(CorruptCheckpoint, match=r"qkv_proj\.weight' has the shape \(128, 64\), not 192 rows"):
        open_checkpoint(tmp_path)


def test_gemmas_embeddings_are_scaled_by_the_root_of_their_width() -> None:
    assert shape_of("Gemma2ForCausalLM", hidden_size=2304).embedding_scale == math.sqrt(2304)
