"""What a worker holds while it loads: the packed weights and little more, however large the file is."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.testing.tiny_model import CONFIG, write_tiny_model

HIDDEN, WIDE, LAYERS, VOCABULARY = 1024, 4096, 5, 24_000
MIB = 1 << 20

# Everything is imported and has run once before the count begins: an interpreter's own memory is not the model's.
_LOAD = """
import json, sys
from pathlib import Path
from headway.config import EngineConfig
from headway.engine.loading import load_engine

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))

small, model, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
config = EngineConfig(
    executor="native", kv_cache_memory=1 << 20, max_num_batched_tokens=64, max_num_seqs=4, threads=2, **options
)
load_engine(small, config, lambda message: None)
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
before = status("VmRSS")
engine, info = load_engine(model, config, lambda message: None)
maps = Path("/proc/self/maps").read_text()
print(json.dumps({
    "peak": status("VmHWM") - before,
    "after": status("VmRSS") - before,
    "weights": info["weights_bytes"],
    "workspace": info["workspace_bytes"],
    "is_mapped": str(model) in maps,
}))
"""


def write_model(folder: Path, dtype: str) -> Path:
    """A llama whose file has some hundred MiB of random weights."""
    write_tiny_model(folder)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(dict(CONFIG) | sizes | heads))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (1024, HIDDEN) for name in "qo"}
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (256, HIDDEN) for name in "kv"}
        shapes |= {f"{prefix}mlp.{name}_proj.weight": (WIDE, HIDDEN) for name in ("gate", "up")}
        shapes |= {f"{prefix}mlp.down_proj.weight": (HIDDEN, WIDE)}
    shapes |= {"model.norm.weight": (HIDDEN,)}
    _write(folder / "model.safetensors", shapes, dtype)
    return folder


def _write(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str) -> None:
    size = {"F32": 4, "BF16": 2}[dtype]
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + int(np.prod(shape)) * size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    values = np.random.default_rng(0).standard_normal(MIB, np.float32) * np.float32(0.02)
    block = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes() if dtype == "BF16" else values.tobytes()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for first in range(0, end, len(block)):
            file.write(block[: end - first])


@pytest.mark.parametrize(
    ("dtype", "options", "form"),
    [("BF16", {}, "bf16"), ("F32", {}, "bf16"), ("BF16", {"quantization": "int8"}, "q8")],
)
def test_a_load_holds_little_more_than_the_run_form(
    tmp_path: Path, dtype: str, options: dict[str, str], form: str
) -> None:
    small, model = write_tiny_model(tmp_path / "small"), write_model(tmp_path / "model", dtype)
    command = [sys.executable, "-c", _LOAD, str(small), str(model), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    num_weights = VOCABULARY * HIDDEN + LAYERS * (2 * 1024 + 2 * 256 + 3 * WIDE) * HIDDEN
    assert found["weights"] > num_weights * {"bf16": 2, "q8": 1}[form]
    assert found["peak"] <= 1.15 * found["weights"], f"{found['peak'] / found['weights']:.3f} of the run form"
    assert found["after"] >= 0.9 * found["weights"], "the weights are not in memory: what was measured is not the load"
    assert not found["is_mapped"]


_LOAD_UNDER_A_LIMIT = """
import json, os, resource, sys
from pathlib import Path
from headway.config import EngineConfig
from headway.engine.loading import load_engine
from headway.errors import OutOfMemory

small, model, extra, options = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
base = {"executor": "native", "kv_cache_memory": 1 << 20, "max_num_seqs": 4, "threads": 1}
load_engine(small, EngineConfig(**base), lambda message: None)
used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + extra, used + extra))
try:
    load_engine(model, EngineConfig(**(base | options)), lambda message: None)
except OutOfMemory as error:
    print(error.message)
"""


@pytest.mark.parametrize(
    ("what", "extra", "options", "words"),
    [
        (
            "weights",
            240 * MIB,
            {},
            r"the weights .+ as bf16: cannot allocate \d{6,} bytes; the machine has \d{8,} free",
        ),
        ("small", 256 * MIB, {"kv_cache_memory": 1 << 30}, r"the KV cache needs 10\d{8} bytes .* \d+ are available"),
        (
            "small",
            256 * MIB,
            {"max_num_batched_tokens": 100_000},
            r"the workspace of steps of 100000 tokens: cannot allocate \d{9,} bytes; the machine has \d{8,} free",
        ),
    ],
)
def test_memory_that_is_not_given_is_told_in_bytes_needed_and_had(
    tmp_path: Path, what: str, extra: int, options: dict[str, int], words: str
) -> None:
    small = write_tiny_model(tmp_path / "small")
    model = write_model(tmp_path / "model", "BF16") if what == "weights" else small
    command = [sys.executable, "-c", _LOAD_UNDER_A_LIMIT, str(small), str(model), str(extra), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert re.search(words, done.stdout), f"{done.stdout}\n{done.stderr[-2000:]}"
