"""Thousands of damaged files: whatever the bytes are, a load ends in an error of ours, soon and in little memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from checkpoint import mutants
from checkpoint.conftest import quantised_model

OURS = {"UnsupportedModel", "CorruptCheckpoint", "TensorMismatch", "OutOfMemory", "InvalidConfig"}


def test_whatever_the_bytes_are_a_load_ends_in_an_error_of_ours(
    tmp_path: Path, folder: Path, write_gguf: Callable[..., Path]
) -> None:
    plain = write_gguf().rename(tmp_path / "plain.gguf")
    quantised = quantised_model().write(tmp_path / "quantised.gguf")
    jobs = {plain: 1200, quantised: 600, folder: 700}
    command = [sys.executable, mutants.__file__, *(str(part) for job in jobs.items() for part in job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
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
