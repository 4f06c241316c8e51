"""Thousands of damaged files: whatever the bytes are, a load ends in an error of ours, soon and in little memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type

from checkpoint import mutants
from checkpoint.conftest import TOKENS, GgufModel

OURS = {"UnsupportedModel", "CorruptCheckpoint", "TensorMismatch", "OutOfMemory", "InvalidConfig"}
KINDS = {
    "token_embd": Type.Q4_1,
    "blk.0.attn_q": Type.Q4_K,
    "blk.0.attn_k": Type.Q5_K,
    "blk.0.attn_v": Type.Q6_K,
    "blk.0.attn_output": Type.Q8_0,
    "blk.0.ffn_gate": Type.Q4_0,
    "blk.0.ffn_up": Type.Q5_1,
    "blk.0.ffn_down": Type.Q5_0,
}


def quantised_model() -> GgufModel:
    """A layer of 256 in all quantised types at once."""
    random = np.random.default_rng(5)
    num_rows = {"token_embd": len(TOKENS), "blk.0.attn_k": 128, "blk.0.attn_v": 128}
    tensors = {
        f"{name}.weight": (random.standard_normal((num_rows.get(name, 256), 256), np.float32), kind)
        for name, kind in KINDS.items()
    }
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = (np.ones(256, np.float32), Type.F32)
    return GgufModel(keys={"embedding_length": 256, "feed_forward_length": 256}, tensors=tensors)


def test_whatever_the_bytes_are_a_load_ends_in_an_error_of_ours(
    tmp_path: Path, folder: Path, write_gguf: Callable[..., Path]
) -> None:
    plain = write_gguf().rename(tmp_path / "plain.gguf")
    quantised = quantised_model().write(tmp_path / "quantised.gguf")
    jobs = {plain: 1200, quantised: 600, folder: 700}
    command = [sys.executable, mutants.__file__, *(str(part) for job in jobs.items() for part in job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, f"{done.returncode} at {done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    for path, count in jobs.items():
        outcomes = found[path.name]["outcomes"]
        assert sum(outcomes.values()) == count
        assert set(outcomes) <= {*OURS, "ok"}
        # The corpus is worth something: it reaches past the first check, and some damage is only other numbers.
        assert outcomes["CorruptCheckpoint"] > count // 10
        assert outcomes["UnsupportedModel"] > 5
        assert outcomes["ok"] > count // 20
        assert found[path.name]["slowest_s"] < 5
