"""llama.cpp in its own environment, and what it makes of random models: each file once a session.

The environment is the one of `make bench` (benchmarks/prepare.sh): under HEADWAY_BENCH_DIR, by default bench/ of the
tests' cache. On a new machine llama.cpp is compiled for it, in about 15 minutes of one core; then it is kept.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from oracles import cache_dir
from peers.random_llama import SHAPES, Shape, random_prompts, write_source

ROOT = Path(__file__).resolve().parents[2]
NUM_GREEDY = 16
RUN_FORMS = (
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
)
"""What llama_model_quantize is asked for and we run."""
OTHER_FORMS = ("IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K_S", "Q3_K_M", "TQ1_0", "TQ2_0", "Q1_0")
"""What it writes and we refuse."""
UNKNOWN_FORM = "Q2_0"
"""Newer than the gguf package and our table."""
_FIGURES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class LlamaFile:
    """A file that llama.cpp wrote, and its own answers to random_prompts(); the refused ones have none."""

    shape: Shape
    form: str
    path: Path

    @property
    def logits(self) -> np.ndarray:
        """[num_prompts, length, vocab_size], with K and V in float16."""
        return np.load(self.path.with_suffix(".logits.npy"))

    @property
    def logits_bf16_cache(self) -> np.ndarray:
        """With K and V in bfloat16."""
        return np.load(self.path.with_suffix(".logits_bf16_cache.npy"))

    @property
    def greedy(self) -> np.ndarray:
        """[num_prompts, NUM_GREEDY] ids that follow."""
        return np.load(self.path.with_suffix(".greedy.npy"))


LlamaFiles = Mapping[tuple[str, str], LlamaFile]


@pytest.fixture(scope="session")
def llamacpp_python() -> Path:
    """The interpreter of the environment that has llama.cpp."""
    folder = Path(os.environ.get("HEADWAY_BENCH_DIR") or cache_dir() / "bench")
    command = ["bash", str(ROOT / "benchmarks" / "prepare.sh"), "--without-models", str(folder), "llamacpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "venv" / "llamacpp" / "bin" / "python"


@pytest.fixture(scope="session")
def llama_files(llamacpp_python: Path, tmp_path_factory: pytest.TempPathFactory) -> LlamaFiles:
    """By name of the shape and form: every shape in RUN_FORMS, and the shape "256" in the other ones."""
    folder = tmp_path_factory.mktemp("llama_files")
    np.save(folder / "prompts.npy", random_prompts())
    for name, shape in SHAPES.items():
        write_source(shape, folder / f"{name}.gguf")
    wanted = [(name, form) for name in SHAPES for form in RUN_FORMS] + [
        ("256", form) for form in (*OTHER_FORMS, UNKNOWN_FORM)
    ]
    files = {(name, form): LlamaFile(SHAPES[name], form, folder / f"{name}-{form}.gguf") for name, form in wanted}
    jobs = [
        {
            "source": str(folder / f"{name}.gguf"),
            "file": str(file.path),
            "form": file.form,
            "prompts": str(folder / "prompts.npy") if file.form in RUN_FORMS else None,
            "num_greedy": NUM_GREEDY,
        }
        | {key: str(file.path.with_suffix(f".{key}.npy")) for key in ("logits", "logits_bf16_cache", "greedy")}
        for (name, _), file in files.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    script = Path(__file__).parent / "ask_llamacpp.py"
    done = subprocess.run(
        [str(llamacpp_python), str(script), str(folder / "jobs.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return files


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed when all is done."""
    return pytestconfig.stash.setdefault(_FIGURES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.write_line("Millinats from float64, by cache: ours, llama.cpp's; ours over the file's values")
    for line in lines:
        terminalreporter.write_line(line)
