"""What GGUF files leave to the loaders of llama.cpp, and what some families have alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_models import canonical_views, read_shape
from headway.checkpoint.shape import ModelShape
from headway.errors import CorruptCheckpoint, UnsupportedModel

Write = Callable[..., Path]


def shape_of(write_gguf: Write, architecture: str, keys: dict[str, Any], **more: Any) -> ModelShape:
    return read_shape(GgufFile(write_gguf(architecture=architecture, keys=keys, **more)))


def windows(shape: ModelShape) -> list[int | None]:
    return [shape.window(layer) for layer in range(shape.num_layers)]


@pytest.mark.parametrize(
    ("architecture", "num_layers", "scaled_by"),
    [("gemma2", 26, 4), ("gemma2", 46, 8 / 2), ("gemma3", 34, 4), ("gemma3", 62, 8 / 2)],
)
def test_gemmas_scores_are_scaled_by_a_head_and_in_27b_by_a_share_of_the_hidden_state(
    write_gguf: Write, architecture: str, num_layers: int, scaled_by: float
) -> None:
    keys = {"block_count": num_layers, "attention.key_length": 16, "attention.value_length": 16}
    shape = shape_of(write_gguf, architecture, keys)
    assert shape.head_dim == 16
    assert shape.attention_scale == (scaled_by if num_layers in (46, 62) else 16) ** -0.5
    assert (shape.embedding_scale, shape.activation) == (8**0.5, "gelu_tanh")


def test_gemma2_has_caps_and_windows_where_the_file_says_nothing(write_gguf: Write) -> None:
    shape = shape_of(write_gguf, "gemma2", {"block_count": 4})
    assert (shape.attention_soft_cap, shape.logits_soft_cap) == (50.0, 30.0)
    assert windows(shape) == [4096, None, 4096, None]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"attention.sliding_window": 8}, [8, 8, 8, 8, 8, None, 8]),
        ({}, [None] * 7),
        (
            {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 3 + [True]},
            [8, None] * 3 + [8],
        ),
        ({"attention.sliding_window": 8, "attention.sliding_window_pattern": [False] * 7}, [None] * 7),
    ],
)
def test_gemma3s_windows_are_on_all_layers_but_each_sixth_or_where_the_file_says(
    write_gguf: Write, keys: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(shape_of(write_gguf, "gemma3", {"block_count": 7, **keys})) == expected


def test_gemma3s_local_layers_have_no_scaling(write_gguf: Write) -> None:
    keys = {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    shape = shape_of(write_gguf, "gemma3", keys)
    assert shape.rope is not None
    assert shape.local_rope is not None
    assert (shape.rope.theta, dict(shape.rope.scaling)) == (1e6, {"rope_type": "linear", "factor": 8.0})
    assert (shape.local_rope.theta, dict(shape.local_rope.scaling)) == (10000.0, {})
    other = shape_of(write_gguf, "gemma3", {**keys, "rope.freq_base_swa": 5000.0})
    assert other.local_rope is not None
    assert other.local_rope.theta == 5000.0


def test_gemmas_norms_come_back_without_the_1_that_was_added(write_gguf: Write) -> None:
    stored = np.array([1.0, 1.5, 0.25, 3.0, 33.0, 0.0, 1.25, 2.0], np.float32)
    path = write_gguf(architecture="gemma2", tensors={"blk.0.attn_norm.weight": (stored, Type.F32)})
    weights = open_checkpoint(path).weights
    np.testing.assert_array_equal(weights.read("layers.0.attn_norm.weight"), stored - 1)
    np.testing.assert_array_equal(weights.raw("layers.0.attn_norm.weight").data.view(np.float32), stored - 1)


def test_phi3s_up_holds_gate_and_up_and_a_window_of_0_is_none(write_gguf: Write) -> None:
    fused = np.random.default_rng(4).standard_normal((24, 8), np.float32)
    path = write_gguf(
        architecture="phi3",
        keys={"attention.sliding_window": 0},
        tensors={"blk.0.ffn_up.weight": (fused, Type.F32)},
        without=("blk.0.ffn_gate.weight",),
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.shape.sliding_window is None
    np.testing.assert_array_equal(checkpoint.weights.read("layers.0.mlp.gate.weight"), fused[:12])
    np.testing.assert_array_equal(checkpoint.weights.read("layers.0.mlp.up.weight"), fused[12:])


def test_longropes_factors_are_tensors_and_its_magnitude_a_key(write_gguf: Write) -> None:
    factors = {
        f"rope_factors_{run}.weight": (np.array(values, np.float32), Type.F32)
        for run, values in (("short", [1.0, 1.5]), ("long", [2.0, 4.0]))
    }
    keys = {"rope.scaling.attn_factor": 1.25, "rope.scaling.original_context_length": 16}
    path = write_gguf(architecture="llama", keys=keys, tensors=factors)
    shape = read_shape(GgufFile(path))
    assert shape.rope is not None
    assert dict(shape.rope.scaling) == {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5],
        "long_factor": [2.0, 4.0],
        "original_max_position_embeddings": 16,
        "attention_factor": 1.25,
    }
    assert not [name for name in canonical_views(GgufFile(path), shape) if "rope" in name]


@pytest.mark.parametrize(
    ("architecture", "keys", "error", "words"),
    [
        ("olmo2", {"attention.sliding_window": 8}, UnsupportedModel, "OLMo 3"),
        ("gpt2", {}, CorruptCheckpoint, "gpt2.attention.layer_norm_epsilon is missing"),
        ("gptneox", {"use_parallel_residual": 1, "attention.layer_norm_epsilon": 1e-5}, CorruptCheckpoint, "is 1, not"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, CorruptCheckpoint, "softcapping is 0.0"),
        ("gemma3", {"attention.sliding_window_pattern": [True]}, CorruptCheckpoint, "for each of 2 layers"),
        ("gemma3", {"attention.sliding_window_pattern": [6, 6]}, CorruptCheckpoint, "truth value"),
        ("phi3", {}, CorruptCheckpoint, "has 12 rows, mlp.gate and mlp.up together have 24"),
    ],
)
def test_what_a_file_cannot_be_is_named(
    write_gguf: Write, architecture: str, keys: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_checkpoint(write_gguf(architecture=architecture, keys={"block_count": 2, **keys}))
