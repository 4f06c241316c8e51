"""A default install has no PyTorch: the commands run where importing it is an error, in the model's process too."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import Server, stop_server

BLOCKER = """
import importlib.machinery, os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        with open(os.environ["ASKED_FOR"], "a") as file:
            print(spec.name, sys.argv, file=file)
        raise ModuleNotFoundError(f"No module named {spec.name!r}", name=spec.name)

    def exec_module(self, module): ...

sys.meta_path.insert(0, Absent())
"""


@pytest.fixture
def asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every Python that is started from here on has no torch; who asks for it leaves a line in this file."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "sitecustomize.py").write_text(BLOCKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "absent"))
    monkeypatch.setenv("ASKED_FOR", str(tmp_path / "asked"))
    return tmp_path / "asked"


def headway(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(Path(sys.executable).with_name("headway")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=dict(os.environ))


@pytest.mark.parametrize(
    "line",
    [
        ["version"],
        ["pull", "demo"],
        ["inspect", "demo"],
        ["doctor", "--port", "0"],
        ["generate", "--max-tokens", "4", "--temperature", "0", "The capital of France is"],
        ["chat", "demo", "--quick", "Say hello.", "--max-tokens", "4"],
    ],
    ids=lambda line: line[0],
)
def test_a_command_asks_for_no_torch(line: list[str], asked_for: Path) -> None:
    done = headway(*line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not asked_for.exists(), asked_for.read_text()


def test_a_server_answers_and_asks_for_no_torch(own_server: Callable[..., Server], asked_for: Path) -> None:
    server = own_server()
    body = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].startswith(" Paris")
    assert stop_server(server) == 0
    assert not asked_for.exists(), asked_for.read_text()


@pytest.mark.parametrize("flags", [("--executor", "torch"), ("--dtype", "float32")], ids=lambda flags: flags[0])
def test_what_needs_torch_names_the_extra_that_has_it(flags: tuple[str, ...], asked_for: Path) -> None:
    done = headway("generate", *flags, "Hello")
    assert done.returncode == 2
    assert "pip install 'headway[torch]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert asked_for.read_text().startswith("torch ")
