"""Where the source of a model of tensors is looked for."""

import sys
from pathlib import Path
from typing import Any

import pytest

import headway.checkpoint.sources
from headway.config import CheckpointConfig, ModelConfig
from headway.service.infer_loading import find_source, spare_kind
from headway.worker.spares import SpareKind


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that were fetched; nothing is."""
    found: list[str] = []

    def fetch(source: str, *_: Any, **__: Any) -> Path:
        found.append(source)
        return Path("/fetched")

    monkeypatch.setattr(headway.checkpoint.sources, "fetch_source", fetch)
    return found


@pytest.mark.parametrize(
    ("framework", "source", "is_fetched"),
    [
        ("transformers", "org/sentiment", True),
        ("torch", "https://host/model.zip", True),
        ("torchvision", "pytorch/vision:mobilenet_v2", False),
        ("torchvision", "mobilenet_v2", False),
        ("onnx", str(Path(__file__).parent), True),
    ],
)
def test_a_source_is_fetched_and_a_name_is_left_to_its_framework(
    fetched: list[str], tmp_path: Path, framework: str, source: str, is_fetched: bool
) -> None:
    path = find_source(ModelConfig(source=source, framework=framework), CheckpointConfig(cache_dir=tmp_path))
    assert fetched == ([source] if is_fetched else [])
    assert path == Path("/fetched" if is_fetched else source)


@pytest.mark.parametrize(
    ("config", "serves", "module"),
    [
        ({}, "tokens", "headway.predictors.headway"),
        ({"framework": "onnx"}, "tensors", "onnxruntime"),
        ({"framework": "transformers", "type": "text-classification"}, "tensors", "torch"),
        ({"framework": "transformers", "type": "text-generation"}, "tokens", "torch"),
    ],
)
def test_what_would_wait_for_a_model_imports_its_framework(config: dict[str, Any], serves: str, module: str) -> None:
    kind = spare_kind(ModelConfig(source="x", **config))
    assert kind is not None
    assert (kind.serves, kind.python) == (serves, None)
    assert module in kind.modules


def test_in_another_interpreter_it_imports_nothing_of_headway_s() -> None:
    kind = spare_kind(ModelConfig(source="x", framework="onnx", interpreter=sys.executable))
    assert kind == SpareKind("tensors", ("onnxruntime", "tokenizers", "PIL.Image"), sys.executable)


@pytest.mark.parametrize(
    "config",
    [
        {"framework": "vllm"},  # too large to wait for somebody
        {"framework": "openai"},
        {"framework": "ensemble"},
        {"framework": "python", "interpreter": sys.executable},  # nothing to import
        {"framework": "onnx", "interpreter": "/nonexistent/python"},
    ],
)
def test_for_some_nothing_would(config: dict[str, Any]) -> None:
    assert spare_kind(ModelConfig(source="x", **config)) is None
