"""Folders that transformers writes, and each key of config.json that is read or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.fields import Fields, read_json
from headway.checkpoint.huggingface_shape import HF_ARCHITECTURES, read_shape
from headway.checkpoint.shape import ModelShape, RopeShape
from headway.errors import CorruptCheckpoint, UnsupportedModel
from headway.text.source import TokenizerFiles

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
TOKENIZER = {"version": "1.0", "added_tokens": [{"id": 7, "content": "<|im_end|>", "special": True}], "model": {}}


def write_config(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> Path:
    values = {"architectures": [architecture], **SIZES, **changes}
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "left out"}))
    return path


def shape_of(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelShape:
    return read_shape(Fields.of_json(write_config(folder, architecture, **changes)))


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., tuple[Path, torch.nn.Module]]:
    """A small random model of an architecture, saved by transformers, with a tokenizer.json."""

    def save(architecture: str, *, max_shard_size: str = "1GB", **changes: Any) -> tuple[Path, torch.nn.Module]:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config_class = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
        known = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        model = getattr(transformers, architecture)(config_class(**(SIZES | known | changes)))
        model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return tmp_path, model

    return save


def theirs(name: str) -> str:
    """Transformers' name of a canonical one."""
    parts = {
        "embed.": "model.embed_tokens.",
        "final_norm.": "model.norm.",
        "layers.": "model.layers.",
        ".attn_norm.": ".input_layernorm.",
        ".mlp_norm.": ".post_attention_layernorm.",
        ".attn.q_norm.": ".self_attn.q_norm.",
        ".attn.k_norm.": ".self_attn.k_norm.",
        ".mlp.gate.": ".mlp.gate_proj.",
        ".mlp.up.": ".mlp.up_proj.",
        ".mlp.down.": ".mlp.down_proj.",
    } | {f".attn.{letter}.": f".self_attn.{letter}_proj." for letter in "qkvo"}
    for ours, other in parts.items():
        name = other + name[len(ours) :] if name.startswith(ours) else name.replace(ours, other)
    return name


@pytest.mark.parametrize("architecture", HF_ARCHITECTURES)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_tensor_that_transformers_saves_is_read_under_its_canonical_name(
    saved: Callable[..., tuple[Path, torch.nn.Module]], architecture: str, is_sharded: bool
) -> None:
    folder, model = saved(architecture, max_shard_size="8KB" if is_sharded else "1GB", head_dim=4)
    assert (folder / "model.safetensors").exists() is not is_sharded
    checkpoint = open_checkpoint(folder)
    shape, config = checkpoint.shape, model.config
    assert shape.architecture == config.model_type
    assert shape.is_tied == config.tie_word_embeddings
    state = model.state_dict()
    if shape.is_tied:
        del state["lm_head.weight"]
    found = checkpoint.weights.shapes()
    assert {theirs(name) for name in found} == set(state)
    for name in found:
        np.testing.assert_array_equal(checkpoint.weights.read(name), state[theirs(name)].float().numpy())
    assert shape.has_qkv_bias == ("layers.0.attn.q.bias" in found)
    assert shape.has_o_bias == ("layers.0.attn.o.bias" in found)
    assert shape.has_mlp_bias == ("layers.0.mlp.up.bias" in found)
    assert shape.has_qk_norm == ("layers.0.attn.q_norm.weight" in found)
    assert (shape.norm_eps, shape.rope.theta) == (config.rms_norm_eps, config.rope_parameters["rope_theta"])
    assert checkpoint.text.end_token_ids == {2}


@pytest.mark.parametrize("architecture", HF_ARCHITECTURES)
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


@pytest.mark.parametrize(
    ("architecture", "changes", "biases"),
    [
        ("LlamaForCausalLM", {"attention_bias": True}, (True, True, False)),
        ("LlamaForCausalLM", {"mlp_bias": True}, (False, False, True)),
        ("MistralForCausalLM", {"attention_bias": True}, (False, False, False)),
        ("Qwen2ForCausalLM", {}, (True, False, False)),
        ("Qwen3ForCausalLM", {"attention_bias": True}, (True, True, False)),
        ("SmolLM3ForCausalLM", {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ("GraniteForCausalLM", {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
    ],
)
def test_biases_are_where_transformers_has_them(
    saved: Callable[..., tuple[Path, torch.nn.Module]],
    architecture: str,
    changes: dict[str, Any],
    biases: tuple[bool, bool, bool],
) -> None:
    folder, _ = saved(architecture, **changes)
    checkpoint = open_checkpoint(folder)
    shape, names = checkpoint.shape, checkpoint.weights.shapes()
    assert (shape.has_qkv_bias, shape.has_o_bias, shape.has_mlp_bias) == biases
    assert tuple(f"layers.1.{part}.bias" in names for part in ("attn.k", "attn.o", "mlp.down")) == biases


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
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'gptq'"),
    ({"quantization_config": {"load_in_4bit": True}}, "quantised"),
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


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[" * 100_000, b""])
def test_a_config_that_is_no_json_object_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        Fields.of_json(tmp_path / "config.json")


def test_a_json_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" " * 100)
    with pytest.raises(CorruptCheckpoint, match="100 bytes; at most 99"):
        read_json(tmp_path / "a.json", max_bytes=99)


@pytest.fixture
def folder(saved: Callable[..., tuple[Path, torch.nn.Module]]) -> Path:
    return saved("LlamaForCausalLM")[0]


def put(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        (2, None, None, {2}),
        ([2, 3], None, None, {2, 3}),
        (None, [4], None, {4}),
        (2, [4, 5], "<|im_end|>", {2, 4, 5, 7}),
        (-1, None, {"content": "<|im_end|>"}, {7}),
        (2, None, "not there", {2}),
        (None, None, None, set()),
    ],
)
def test_end_tokens_are_the_union_of_three_files(
    folder: Path, config: Any, generation: Any, tokenizer: Any, ends: set[int]
) -> None:
    put(folder, "config.json", json.loads((folder / "config.json").read_text()) | {"eos_token_id": config})
    put(folder, "generation_config.json", {"eos_token_id": generation, "temperature": 0.5})
    put(folder, "tokenizer_config.json", {"eos_token": tokenizer})
    text = open_checkpoint(folder).text
    assert text.end_token_ids == ends
    assert text.generation_defaults["temperature"] == 0.5
    assert text.vocabulary == TokenizerFiles(folder / "tokenizer.json", {"eos_token": tokenizer})


def test_an_end_token_is_also_found_in_added_tokens_decoder(folder: Path) -> None:
    put(folder, "tokenizer_config.json", {"eos_token": "E", "added_tokens_decoder": {"9": {"content": "E"}}})
    assert open_checkpoint(folder).text.end_token_ids == {2, 9}


TEMPLATES = {
    "chat_template.jinja": ("from jinja", "from jinja"),
    "chat_template.json": ({"chat_template": "from json"}, "from json"),
    "tokenizer_config.json": ({"chat_template": "from config"}, "from config"),
}


def test_the_chat_template_is_looked_for_in_three_places(folder: Path) -> None:
    assert open_checkpoint(folder).text.chat_template is None
    for name, (content, template) in reversed(TEMPLATES.items()):
        put(folder, name, content)
        assert open_checkpoint(folder).text.chat_template == template


def test_of_named_chat_templates_the_default_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    put(folder, "tokenizer_config.json", {"chat_template": named})
    assert open_checkpoint(folder).text.chat_template == "D"


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, UnsupportedModel, "auto_map"),
        ("tokenizer_config.json", {"eos_token": 3}, CorruptCheckpoint, "eos_token"),
        ("tokenizer_config.json", {"chat_template": 3}, CorruptCheckpoint, "chat_template"),
        ("tokenizer_config.json", {"chat_template": [3]}, CorruptCheckpoint, "chat_template"),
        ("tokenizer_config.json", {"eos_token": "E", "added_tokens_decoder": {"x": {}}}, CorruptCheckpoint, "'x'"),
        ("tokenizer_config.json", [], CorruptCheckpoint, "not an object"),
        ("generation_config.json", {"eos_token_id": "2"}, CorruptCheckpoint, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": [True]}, CorruptCheckpoint, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": 32}, CorruptCheckpoint, "has 32, of 32 tokens"),
        ("chat_template.json", {"chat_template": "x" * 1_100_000}, CorruptCheckpoint, "characters"),
        ("chat_template.jinja", "x" * 1_100_000, CorruptCheckpoint, "bytes"),
    ],
)
def test_wrong_text_files_are_named(folder: Path, name: str, content: Any, error: type[Exception], words: str) -> None:
    put(folder, name, content)
    with pytest.raises(error, match=words):
        open_checkpoint(folder)


def test_a_folder_without_tokenizer_json_says_what_it_has_instead(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json: tokenizer\.model alone"):
        open_checkpoint(folder)


def test_junk_and_a_tied_head_are_ignored_and_strange_tensors_are_kept_by_their_name(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), "strange.weight": torch.ones(3)}
    save_file(tensors | more, folder / "model.safetensors", {"format": "pt"})
    put(folder, "config.json", json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True})
    shapes = open_checkpoint(folder).weights.shapes()
    assert "lm_head.weight" not in shapes
    assert not [name for name in shapes if "rotary" in name]
    assert shapes["strange.weight"] == (3,)


def test_a_tensor_of_a_dtype_that_is_not_read_is_refused_when_the_model_is_opened(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"F8_E4M3 .*'model\.norm\.weight'"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "../model.safetensors"}, "not a safetensors file of this folder"),
        ({"a": "/etc/passwd"}, "not a safetensors file of this folder"),
        ({"a": "..\\model.safetensors"}, "not a safetensors file of this folder"),
        ({"a": "pytorch_model.bin"}, "not a safetensors file of this folder"),
        ({"a": 3}, "not a safetensors file of this folder"),
        ({"a": "gone.safetensors"}, "download is not complete"),
        ({"a": "part.safetensors"}, "does not have 'a'"),
        ({}, "missing or empty"),
        ([], "not an object"),
    ],
)
def test_an_index_that_leads_elsewhere_is_corrupt(folder: Path, weight_map: Any, words: str) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    put(folder, "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CorruptCheckpoint, match=words):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_is_corrupt(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(data)
    weight_map = {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
    put(folder, "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CorruptCheckpoint, match="also in another file"):
        open_checkpoint(folder)


def test_the_identity_changes_with_the_weights(folder: Path) -> None:
    before = open_checkpoint(folder)
    assert before.identity == open_checkpoint(folder).identity
    assert before.created == int((folder / "model.safetensors").stat().st_mtime)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"more": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(folder).identity != before.identity
