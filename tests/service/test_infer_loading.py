"""Where the source of a model of tensors is looked for."""

from pathlib import Path
from typing import Any

import pytest

import headway.checkpoint.sources
from headway.config import CheckpointConfig, ModelConfig
from headway.service.infer_loading import find_source


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
