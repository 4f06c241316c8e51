import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.shape import ModelShape, RopeShape
from headway.errors import CorruptCheckpoint, UnsupportedModel
from oracles import demo_model

Write = Callable[..., Path]


def ones(*shape: int) -> tuple[np.ndarray, Type]:
    return np.ones(shape, np.float32), Type.F32


def permute(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """LlamaModel.permute of llama.cpp's conversion/llama.py."""
    return (
        values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
        .swapaxes(1, 2)
        .reshape(values.shape)
    )


def test_the_demo_models_shape_is_smollm2s() -> None:
    checkpoint = open_checkpoint(demo_model())
    assert checkpoint.format == "gguf"
    assert checkpoint.shape == ModelShape(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position=8192,
        norm_eps=float(np.float32(1e-5)),
        rope=RopeShape(theta=100000.0, dims=64),
        is_tied=True,
    )
    shapes = checkpoint.weights.shapes()
    assert len(shapes) == 30 * 9 + 2
    assert shapes["embed.weight"] == (49152, 576)
    assert shapes["layers.29.mlp.down.weight"] == (576, 1536)
    assert "lm_head.weight" not in shapes
    assert len(checkpoint.identity) == 16


@pytest.mark.parametrize("architecture", ["llama", "granite", "smollm3", "qwen2", "qwen3", "olmo2", "gemma3"])
def test_q_and_k_come_back_as_hugging_face_has_them(write_gguf: Write, architecture: str) -> None:
    # Two heads of 4 for q, one for k; the converter permutes for those that llama.cpp rotates in pairs.
    random = np.random.default_rng(2)
    q, k = random.standard_normal((8, 8), np.float32), random.standard_normal((4, 8), np.float32)
    bias = random.standard_normal(8, np.float32)
    is_permuted = architecture in ("llama", "granite", "smollm3")

    def stored(values: np.ndarray, num_heads: int) -> tuple[np.ndarray, Type]:
        return (permute(torch.from_numpy(values), num_heads).numpy() if is_permuted else values), Type.F32

    path = write_gguf(
        architecture=architecture,
        tensors={
            "blk.0.attn_q.weight": stored(q, 2),
            "blk.0.attn_k.weight": stored(k, 1),
            "blk.0.attn_q.bias": stored(bias, 2),
        },
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.shape.architecture == architecture
    assert checkpoint.shape.has_qkv_bias
    for name, expected in (("q.weight", q), ("k.weight", k), ("q.bias", bias)):
        values = checkpoint.weights.read(f"layers.0.attn.{name}")
        np.testing.assert_array_equal(values, expected)
        assert values.flags.c_contiguous


def test_a_fused_qkv_is_read_as_its_three_parts(write_gguf: Write) -> None:
    q, k, v = (np.random.default_rng(3).standard_normal((rows, 8), np.float32) for rows in (8, 4, 4))
    fused = np.concatenate([permute(torch.from_numpy(q), 2).numpy(), permute(torch.from_numpy(k), 1).numpy(), v])
    apart = tuple(f"blk.0.attn_{part}.weight" for part in "qkv")
    path = write_gguf(tensors={"blk.0.attn_qkv.weight": (fused, Type.F32)}, without=apart)
    weights = open_checkpoint(path).weights
    for part, expected in zip("qkv", (q, k, v), strict=True):
        assert weights.shapes()[f"layers.0.attn.{part}.weight"] == expected.shape
        np.testing.assert_array_equal(weights.read(f"layers.0.attn.{part}.weight"), expected)


def test_granites_scales_are_read_and_logits_are_divided_by_theirs(write_gguf: Write) -> None:
    keys = {"attention.scale": 0.25, "embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 8.0}
    shape = open_checkpoint(write_gguf(architecture="granite", keys=keys)).shape
    assert (shape.attention_scale, shape.embedding_scale, shape.residual_scale, shape.logits_scale) == (
        0.25,
        12.0,
        0.5,
        0.125,
    )


def test_smollm3_has_no_positions_in_every_fourth_layer(write_gguf: Write) -> None:
    shape = open_checkpoint(write_gguf(architecture="smollm3", keys={"block_count": 9})).shape
    assert shape.rope.skipped_layers == {3, 7}


def test_granite_without_finetuned_rope_has_no_positions_at_all(write_gguf: Write) -> None:
    keys = {"rope.scaling.finetuned": False, "block_count": 2}
    assert open_checkpoint(write_gguf(architecture="granite", keys=keys)).shape.rope.skipped_layers == {0, 1}


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({}, {}),
        ({"rope.scaling.type": "none"}, {}),
        ({"rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
                "rope.scaling.yarn_beta_fast": 16.0,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 16.0},
        ),
    ],
)
def test_rope_scaling_is_said_in_the_words_of_config_json(
    write_gguf: Write, keys: dict[str, Any], scaling: dict[str, Any]
) -> None:
    assert dict(open_checkpoint(write_gguf(keys=keys)).shape.rope.scaling) == scaling


def test_frequency_factors_are_part_of_the_shape_and_no_weight(write_gguf: Write) -> None:
    factors = np.array([1.0, 8.0], np.float32)
    checkpoint = open_checkpoint(write_gguf(tensors={"rope_freqs.weight": (factors, Type.F32)}))
    assert checkpoint.shape.rope.frequency_factors == (1.0, 8.0)
    assert not [name for name in checkpoint.weights.shapes() if "rope" in name]


def test_what_the_tensors_say_is_in_the_shape(write_gguf: Write) -> None:
    path = write_gguf(
        architecture="qwen3",
        tensors={
            "output.weight": ones(8, 8),
            "blk.0.attn_q_norm.weight": ones(4),
            "blk.0.attn_k_norm.weight": ones(4),
            "blk.0.attn_output.bias": ones(8),
            "blk.0.ffn_gate.bias": ones(12),
            "something.else": ones(3),
        },
    )
    checkpoint = open_checkpoint(path)
    shape, shapes = checkpoint.shape, checkpoint.weights.shapes()
    assert (shape.is_tied, shape.has_qk_norm, shape.has_o_bias, shape.has_mlp_bias) == (False, True, True, True)
    assert not shape.has_qkv_bias
    assert shapes["lm_head.weight"] == (8, 8)
    assert shapes["layers.0.attn.q_norm.weight"] == (4,)
    assert shapes["something.else"] == (3,)  # under its own name, so that a comparison lists it


def test_a_number_for_each_layer_is_taken_where_all_are_the_same(write_gguf: Write) -> None:
    keys = {"attention.head_count_kv": [1, 1, 1], "feed_forward_length": [12, 12, 12]}
    shape = open_checkpoint(write_gguf(keys=keys)).shape
    assert (shape.num_kv_heads, shape.intermediate_size) == (1, 12)


@pytest.mark.parametrize(("kind", "dtype"), [(Type.F32, "float32"), (Type.F16, "float16"), (Type.BF16, "bfloat16")])
def test_the_dtype_is_that_of_most_bytes(write_gguf: Write, kind: Type, dtype: str) -> None:
    large = np.zeros((4096, 8), np.float32)
    entries = {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1], "tokenizer.ggml.eos_token_id": 0}
    path = write_gguf(entries=entries, tensors={"token_embd.weight": (large, kind)})
    assert open_checkpoint(path).shape.dtype == dtype


UNSUPPORTED = [
    ({"architecture": "nosuch"}, r"'nosuch'; there are llama, granite, smollm3, qwen2, qwen3"),
    ({"entries": {"general.type": "adapter"}}, "type 'adapter'"),
    ({"without": ("token_embd.weight",)}, "a vocabulary or an adapter"),
    ({"architecture": "qwen3", "keys": {"expert_count": 8}}, "mixture of experts in the architecture 'qwen3'"),
    ({"keys": {"attention.causal": False}}, "bidirectional"),
    ({"keys": {"attention.key_length": 4, "attention.value_length": 2}}, "4 for keys, 2 for values"),
    ({"keys": {"rope.dimension_count": 2}}, "rotates 2 of 4"),
    ({"keys": {"attention.head_count_kv": [1, 2]}}, "differs between layers"),
    ({"entries": {"tokenizer.ggml.tokens": None}}, "no tokenizer"),
]
CORRUPT = [
    ({"keys": {"block_count": None}}, "llama.block_count is missing"),
    ({"keys": {"block_count": 0}}, "llama.block_count is 0"),
    ({"keys": {"block_count": 1000000}}, "1 to 10000"),
    ({"keys": {"block_count": "one"}}, "not a whole number"),
    ({"keys": {"embedding_length": 9}}, "not a multiple of 2 heads"),
    ({"keys": {"attention.head_count_kv": 3}}, "does not divide 2"),
    ({"keys": {"attention.head_count": 0}}, "head_count is 0"),
    ({"keys": {"rope.dimension_count": 3}}, "even numbers up to 4"),
    ({"keys": {"attention.layer_norm_rms_epsilon": float("nan")}}, "nan"),
    ({"keys": {"rope.freq_base": -1.0}}, "-1.0"),
    ({"keys": {"rope.scaling.type": "linear"}}, "rope.scaling.factor is missing"),
    ({"tensors": {"rope_freqs.weight": ones(3)}}, "2 positive numbers"),
    ({"keys": {"rope.scaling.type": "longrope"}}, "'longrope' needs the tensor 'rope_factors_short"),
    ({"tensors": {"rope_factors_short.weight": ones(2)}}, "'longrope' needs the tensor 'rope_factors_long"),
    ({"tensors": {f"rope_factors_{run}.weight": ones(1) for run in ("short", "long")}}, "2 positive numbers"),
    ({"tensors": {"token_embd.weight": ones(8)}}, "not two dimensions"),
    ({"tensors": {"token_embd.weight": ones(4, 8)}}, "8 tokens, but token_embd.weight only 4 rows"),
    ({"tensors": {"blk.0.attn_qkv.weight": ones(16, 8)}}, "are both layers.0.attn.q.weight"),
    ({"tensors": {"blk.0.attn_qkv.weight": ones(15, 8)}}, "15 rows, attn.q, attn.k and attn.v together have 16"),
    ({"tensors": {"blk.0.attn_q.weight": ones(6, 8)}}, "6 rows for 2 heads"),
]


@pytest.mark.parametrize(("changes", "words"), UNSUPPORTED)
def test_models_that_are_not_supported_are_refused_by_name(
    write_gguf: Write, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        open_checkpoint(write_gguf(**changes))


@pytest.mark.parametrize(("changes", "words"), CORRUPT)
def test_wrong_numbers_name_their_key(write_gguf: Write, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=words):
        open_checkpoint(write_gguf(**changes))


def test_a_quantised_type_that_is_not_read_is_refused_when_the_model_is_opened(write_gguf: Write) -> None:
    path = write_gguf(tensors={"blk.0.ffn_down.weight": (np.zeros((8, 256), np.float32), Type.Q4_0)})
    file = GgufFile(path)
    start = path.read_bytes().index(b"blk.0.ffn_down.weight") + len("blk.0.ffn_down.weight") + 4 + 16
    with path.open("r+b") as written:
        written.seek(start)
        written.write(struct.pack("<I", int(Type.IQ4_NL)))  # of the same size as Q4_0
    assert file.tensors["blk.0.ffn_down.weight"].type.name == "Q4_0"
    with pytest.raises(UnsupportedModel, match="IQ4_NL"):
        open_checkpoint(path)


def test_a_mistral_file_says_llama(write_gguf: Write) -> None:
    shape = open_checkpoint(write_gguf(keys={"attention.sliding_window": 32, "attention.key_length": 4})).shape
    assert (shape.architecture, shape.sliding_window, shape.head_dim) == ("llama", 32, 4)


def test_the_gguf_packages_names_of_tensors_are_all_mapped() -> None:
    # Every tensor that the converter may write for these architectures, but those of other models' features.
    known = [
        "token_embd",
        "output_norm",
        "output",
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "attn_q_norm",
        "attn_k_norm",
    ]
    known += ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "rope_freqs", "attn_rot_embd"]
    others = ("exps", "shexp", "gate_inp", "rope_factors", "qkv", "exp")
    for architecture in ("LLAMA", "QWEN2", "QWEN3", "SMOLLM3", "GRANITE"):
        for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH[architecture]]:
            name = gguf.TENSOR_NAMES[tensor].removeprefix("blk.{bid}.")
            assert name in known or any(part in name for part in others) or name.startswith(("cls", "nextn")), name
