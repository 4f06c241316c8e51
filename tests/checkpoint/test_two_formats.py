"""The same model as a Hugging Face folder and as a GGUF file by llama.cpp's converter must be the same to Headway."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headway.checkpoint.checkpoint import open_checkpoint
from headway.model import make_program
from oracles import convert_by_llama_cpp
from parity.architectures import CASES, save_model

SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 5e4,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GRANITE = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 8.0,
}


MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {  # the last: q, k and v in one tensor
    "llama with biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, False),
    "llama 3": ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "tie_word_embeddings": True}, True),
    "mistral": ("MistralForCausalLM", {"sliding_window": None, "head_dim": 16}, False),
    "qwen2 with yarn": ("Qwen2ForCausalLM", {"rope_scaling": YARN}, False),
    "qwen2": ("Qwen2ForCausalLM", {}, True),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, True),
    "smollm3": ("SmolLM3ForCausalLM", {}, False),
    "granite": ("GraniteForCausalLM", GRANITE, False),
}
GEMMA3 = CASES["gemma3"].config
FAMILIES = {
    "gpt2": (CASES["gpt2"], {"n_inner": 4 * 64, "n_ctx": 128}),
    "gpt_neox": (CASES["gpt_neox"], {"rotary_pct": 0.25}),
    "gpt_neox sequential": (CASES["gpt_neox-sequential"], {"hidden_act": "gelu", "rotary_pct": 0.25}),
    "gemma2": (CASES["gemma2"], {"query_pre_attn_scalar": 32}),
    "gemma3": (CASES["gemma3"], {"query_pre_attn_scalar": 32, "layer_types": None, "num_hidden_layers": 7}),
    "phi3": (CASES["phi3"], {}),
    "phi4": (CASES["phi3-longrope_short"], {"tie_word_embeddings": True}),
    "olmo2": (CASES["olmo2"], {}),
}
"""Those of parity/, with what a GGUF file can say, and with keys that the converter reads in older files."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model, with the folder's GGUF file model.gguf inside."""
    root = tmp_path_factory.mktemp("models")
    torch.set_num_threads(1)
    jobs = []
    for name, (architecture, changes, is_fused) in MODELS.items():
        torch.manual_seed(0)
        known = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**(SIZES | known | changes))
        getattr(transformers, architecture)(config).save_pretrained(root / name)
        (root / name / "tokenizer.json").write_text(json.dumps({"model": {}}))
        jobs.append((root / name, root / name / "model.gguf", is_fused))
    for name, (case, changes) in FAMILIES.items():
        (root / name).mkdir()
        save_model(dataclasses.replace(case, config=case.config | changes), root / name)
        _change(root / name / "config.json", changes)
        _change(
            root / name / "tokenizer.json",
            {"model": {"vocab": dict.fromkeys(map(str, range(128)), 0)}, "added_tokens": []},
        )
        jobs.append((root / name, root / name / "model.gguf", False))
    convert_by_llama_cpp(jobs)
    return root


def _change(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {key: value for key, value in changes.items() if value is not None})
    )


@pytest.mark.parametrize("model", MODELS)
def test_both_formats_of_a_model_have_the_same_shape_and_weights(folders: Path, model: str) -> None:
    folder, file = open_checkpoint(folders / model), open_checkpoint(folders / model / "model.gguf")
    assert file.weights.shapes() == folder.weights.shapes()
    for name in folder.weights.shapes():
        np.testing.assert_array_equal(file.weights.read(name), folder.weights.read(name), err_msg=name)

    # What the formats say in different ways: numbers in float32, Mistral as llama, llama3 scaling as factors.
    expected, rope = folder.shape, folder.shape.rope
    if model == "llama 3":
        rope = dataclasses.replace(rope, scaling={}, frequency_factors=file.shape.rope.frequency_factors)
        # Wavelengths 6.3, 94, 1405, 21011 of theta 50000 and 8 dimensions: over 16 / 1 slow, under 16 / 4 fast, and
        # between them 1 / ((1 - s) / 8 + s), s = (16 / 6.2832 - 1) / 3 = 0.51549.
        assert file.shape.rope.frequency_factors == pytest.approx((1.73594, 8.0, 8.0, 8.0), abs=1e-4)
    architecture = "llama" if expected.architecture == "mistral" else expected.architecture
    norm_eps = float(np.float32(expected.norm_eps))
    assert file.shape == dataclasses.replace(expected, architecture=architecture, rope=rope, norm_eps=norm_eps)


@pytest.mark.parametrize("model", FAMILIES)
def test_both_formats_of_a_family_have_the_same_program_and_weights(folders: Path, model: str) -> None:
    folder, file = open_checkpoint(folders / model), open_checkpoint(folders / model / "model.gguf")
    assert file.weights.shapes() == folder.weights.shapes()
    for name in folder.weights.shapes():
        # Norms that the converter shifts by 1 are rounded at it.
        atol = 1.2e-7 if model.startswith("gemma") and "norm" in name else 0
        np.testing.assert_allclose(file.weights.read(name), folder.weights.read(name), atol=atol, rtol=0, err_msg=name)
    for max_model_len in (16, 128):
        ours, theirs = (make_program(part.shape, max_model_len=max_model_len) for part in (file, folder))
        assert ours.weights == theirs.weights
        assert ours.caches == theirs.caches
        assert [_rounded(op) for op in ours.ops] == [_rounded(op) for op in theirs.ops]


def _rounded(op: Any) -> Any:
    """A GGUF file's numbers are float32."""
    numbers = {
        field.name: float(np.float32(getattr(op, field.name)))
        for field in dataclasses.fields(op)
        if isinstance(getattr(op, field.name), float)
    }
    return dataclasses.replace(op, **numbers)
