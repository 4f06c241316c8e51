import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.checkpoint.checkpoint import open_checkpoint
from headway.errors import CorruptCheckpoint, UnsupportedModel

Save = Callable[..., tuple[Path, torch.nn.Module]]
Put = Callable[[str, Any], None]


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


LLAMA_LIKE = [f"{name}ForCausalLM" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3", "Granite")]


@pytest.mark.parametrize("architecture", LLAMA_LIKE)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_every_tensor_that_transformers_saves_is_read_under_its_canonical_name(
    saved: Save, architecture: str, is_sharded: bool
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
    saved: Save,
    architecture: str,
    changes: dict[str, Any],
    biases: tuple[bool, bool, bool],
) -> None:
    folder, _ = saved(architecture, **changes)
    checkpoint = open_checkpoint(folder)
    shape, names = checkpoint.shape, checkpoint.weights.shapes()
    assert (shape.has_qkv_bias, shape.has_o_bias, shape.has_mlp_bias) == biases
    assert tuple(f"layers.1.{part}.bias" in names for part in ("attn.k", "attn.o", "mlp.down")) == biases


def test_junk_and_a_tied_head_are_ignored_and_strange_tensors_are_kept_by_their_name(folder: Path, put: Put) -> None:
    tensors = load_file(folder / "model.safetensors")
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), "strange.weight": torch.ones(3)}
    save_file(tensors | more, folder / "model.safetensors", {"format": "pt"})
    put("config.json", json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True})
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
def test_an_index_that_leads_elsewhere_is_corrupt(folder: Path, put: Put, weight_map: Any, words: str) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    put("model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CorruptCheckpoint, match=words):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_is_corrupt(folder: Path, put: Put) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(data)
    weight_map = {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
    put("model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(CorruptCheckpoint, match="also in another file"):
        open_checkpoint(folder)


def test_the_identity_changes_with_the_weights(folder: Path) -> None:
    before = open_checkpoint(folder)
    assert before.identity == open_checkpoint(folder).identity
    assert before.created == int((folder / "model.safetensors").stat().st_mtime)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"more": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(folder).identity != before.identity
