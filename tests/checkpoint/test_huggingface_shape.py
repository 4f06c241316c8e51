import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headway.checkpoint.fields import Fields
from headway.checkpoint.huggingface import read_shape
from headway.checkpoint.shape import ModelShape, RopeShape
from headway.errors import CorruptCheckpoint, UnsupportedModel

LLAMA_LIKE = [f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Granite", "Olmo2")]
Save = Callable[..., tuple[Path, torch.nn.Module]]
Put = Callable[[str, Any], None]

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def write_config(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> Path:
    values = {"architectures": [architecture], **SIZES, **changes}
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "left out"}))
    return path


def shape_of(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelShape:
    return read_shape(Fields.of_json(write_config(folder, architecture, **changes)))


@pytest.mark.parametrize("architecture", LLAMA_LIKE)
def test_keys_that_are_left_out_have_transformers_defaults(tmp_path: Path, architecture: str) -> None:
    left_out = dict.fromkeys(("num_key_value_heads",), "left out")
    heads = {"num_attention_heads": 32, "hidden_size": 256}
    shape = shape_of(tmp_path, architecture, **heads, **left_out)
    given = {key: value for key, value in (SIZES | heads).items() if key not in left_out}
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**given)
    assert shape.num_kv_heads == config.num_key_value_heads
    assert shape.norm_eps == config.rms_norm_eps
    assert shape.rope.theta == config.rope_parameters["rope_theta"]
    assert shape.is_tied == config.tie_word_embeddings
    assert shape.activation == config.hidden_act
    assert shape.head_dim == (getattr(config, "head_dim", None) or 8)
    windows = getattr(config, "sliding_window", None)
    assert shape.sliding_window == windows
    if architecture == "SmolLM3ForCausalLM":
        assert shape.rope.skipped_layers == {layer for layer, has in enumerate(config.no_rope_layers) if not has}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({}, RopeShape(theta=10000.0, dims=4)),
        ({"rope_theta": 5e5, "rope_scaling": None}, RopeShape(theta=5e5, dims=4)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeShape(theta=5e5, dims=4)),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            RopeShape(theta=5e5, dims=4, scaling={"rope_type": "linear", "factor": 2.0}),
        ),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16}},
            RopeShape(dims=4, scaling=LLAMA3 | {"original_max_position_embeddings": 16}),
        ),
        (
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            RopeShape(theta=5e5, dims=4, scaling=LLAMA3 | {"original_max_position_embeddings": 64}),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 16},
            RopeShape(dims=4, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        ),
        ({"partial_rotary_factor": 0.5}, RopeShape(dims=2)),
    ],
)
def test_both_spellings_of_rope_are_read(tmp_path: Path, changes: dict[str, Any], rope: RopeShape) -> None:
    assert shape_of(tmp_path, **changes).rope == rope


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("MistralForCausalLM", {}, 4096),  # transformers' default where the key is not there
        ("MistralForCausalLM", {"sliding_window": None}, None),
        ("MistralForCausalLM", {"sliding_window": 32}, 32),
        ("LlamaForCausalLM", {}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 32}, None),
        ("Qwen2ForCausalLM", {"sliding_window": 32, "use_sliding_window": True}, None),  # from layer 28 on
        ("Qwen2ForCausalLM", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, 32),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
    ],
)
def test_a_window_is_kept_where_a_layer_has_one(
    tmp_path: Path, architecture: str, changes: dict[str, Any], window: int | None
) -> None:
    assert shape_of(tmp_path, architecture, **changes).sliding_window == window


def test_granites_multipliers_are_read(tmp_path: Path) -> None:
    multipliers = {
        "attention_multiplier": 0.5,
        "embedding_multiplier": 12,
        "residual_multiplier": 0.25,
        "logits_scaling": 8,
    }
    shape = shape_of(tmp_path, "GraniteForCausalLM", **multipliers)
    assert (shape.attention_scale, shape.embedding_scale, shape.residual_scale, shape.logits_scale) == (
        0.5,
        12.0,
        0.25,
        0.125,
    )


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [({}, "float32"), ({"torch_dtype": "bfloat16"}, "bfloat16"), ({"dtype": "torch.float16"}, "float16")],
)
def test_both_spellings_of_dtype_are_read(tmp_path: Path, changes: dict[str, Any], dtype: str) -> None:
    assert shape_of(tmp_path, **changes).dtype == dtype


UNSUPPORTED = [
    ({"architectures": ["NoSuchForCausalLM"]}, r"'NoSuchForCausalLM'; there are LlamaForCausalLM, "),
    ({"architectures": None, "model_type": "nosuch"}, r"'nosuch'; there are llama, mistral, qwen2"),
    ({"auto_map": {"AutoModel": "modeling.Mine"}}, "auto_map"),
    ({"hidden_act": "xielu"}, "'xielu'"),
    ({"dtype": "float8_e4m3fn"}, "'float8_e4m3fn'"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "kinds of layers"),
]


CORRUPT = [
    ({"hidden_size": "left out"}, "hidden_size is missing"),
    ({"hidden_size": "16"}, "hidden_size is '16', not a whole number"),
    ({"hidden_size": 16.0}, "hidden_size is 16.0"),
    ({"hidden_size": True}, "hidden_size is True"),
    ({"hidden_size": 18}, "not a multiple of 4 heads"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"vocab_size": 2**40}, "vocab_size is 1099511627776"),
    ({"num_key_value_heads": 3}, "does not divide 4"),
    ({"head_dim": 5}, "even"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    ({"rope_theta": 0}, "rope_theta is 0"),
    ({"rope_theta": 10**400}, "rope_theta is too large"),
    ({"rope_scaling": [1]}, "rope_scaling is a list"),
    ({"rope_scaling": {"type": 7}}, "type is a number"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    ({"architectures": "Llama"}, "architectures is not a list"),
    ({"architectures": None}, "model_type is missing"),
]


@pytest.mark.parametrize(("changes", "words"), UNSUPPORTED)
def test_configs_that_are_not_supported_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        shape_of(tmp_path, **changes)


@pytest.mark.parametrize(("changes", "words"), CORRUPT)
def test_wrong_values_name_the_file_and_the_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="config.json.*" + words):
        shape_of(tmp_path, **changes)


def test_no_rope_layers_must_be_a_flag_for_each_layer(tmp_path: Path) -> None:
    assert shape_of(tmp_path, "SmolLM3ForCausalLM", no_rope_layers=[1, 0]).rope.skipped_layers == {1}
    for wrong in ([1], [1, 2], "10", [1, None]):
        with pytest.raises(CorruptCheckpoint, match="no_rope_layers"):
            shape_of(tmp_path, "SmolLM3ForCausalLM", no_rope_layers=wrong)
