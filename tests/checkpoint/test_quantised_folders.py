"""Quantised folders, with the quantization_config of real ones: each refused by its name, with what to take instead."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headway.checkpoint.checkpoint import open_checkpoint
from headway.errors import UnsupportedModel

INT4 = r"--quantization int4, or take a GGUF file of it \(Q4_K_M\)"
INT8 = r"--quantization int8, or take a GGUF file of it \(Q8_0\)"
PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, rf"GPTQ weights \(4 bits\).*{INT4}"),
        ({"quant_method": "gptq", "bits": 8}, rf"GPTQ weights \(8 bits\).*{INT8}"),
        ({"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm"}, rf"AWQ weights \(4 bits\).*{INT4}"),
        ({"quant_method": "awq", "w_bit": 4}, rf"AWQ weights \(4 bits\).*{INT4}"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, rf"FP8 weights, .*{INT8}"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, rf"FP8 weights \(fbgemm\).*{INT8}"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
            },
            rf"FP8 weights \(compressed-tensors\).*{INT8}",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": PACKED}}},
            rf"compressed-tensors weights \(4 bits\).*{INT4}",
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, rf"bitsandbytes weights \(4 bits\).*{INT4}"),
        ({"load_in_8bit": True, "load_in_4bit": False}, rf"bitsandbytes weights \(8 bits\).*{INT8}"),
        ({"quant_method": "hqq"}, "weights quantised by 'hqq'.*unquantised, or a GGUF file of it"),
        ({"config_groups": 3}, "compressed-tensors weights"),
        ({}, "'unnamed'"),
    ],
)
def test_each_kind_is_refused_by_name(folder: Path, config: dict[str, Any], words: str) -> None:
    whole = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(whole | {"quantization_config": config}))
    with pytest.raises(UnsupportedModel, match=words):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("model.layers.0.self_attn.q_proj.qweight", "GPTQ or AWQ weights"),
        ("model.layers.0.self_attn.q_proj.weight_packed", "compressed-tensors weights"),
        ("model.layers.0.self_attn.q_proj.weight_scale_inv", "FP8 weights"),
        ("model.layers.0.self_attn.q_proj.weight.absmax", "bitsandbytes weights"),
        ("model.layers.0.self_attn.q_proj.SCB", "bitsandbytes weights"),
    ],
)
def test_the_tensors_give_away_a_folder_that_does_not_say_it(folder: Path, tensor: str, words: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {tensor: np.zeros((8, 8), np.int32)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=rf"{words} \('{tensor}'\)"):
        open_checkpoint(folder)


def test_what_older_compressed_tensors_files_say_is_seen(folder: Path, put: Callable[[str, Any], None]) -> None:
    put("config.json", json.loads((folder / "config.json").read_text()) | {"compression_config": {"config_groups": {}}})
    with pytest.raises(UnsupportedModel, match="compressed-tensors weights"):
        open_checkpoint(folder)
