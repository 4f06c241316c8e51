"""Sampling defaults: those that no request may have are refused at load, not at each request."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headway.config import CheckpointConfig, ModelConfig
from headway.errors import DownloadFailed, InvalidConfig
from headway.service.loader import ProcessLoader, read_generation_defaults
from headway.text.source import TextSource, TokenizerFiles

IMPOSSIBLE = [
    ({"top_k": 50.0}, "top_k is 50.0"),
    ({"temperature": -1}, "temperature is -1"),
    ({"presence_penalty": "x"}, "presence_penalty is x"),
    ({"top_p": 5}, "top_p is 5"),
]


def source(defaults: dict[str, Any]) -> TextSource:
    return TextSource(TokenizerFiles(Path("tokenizer.json")), 1, frozenset(), generation_defaults=defaults)


@pytest.mark.parametrize(("defaults", "words"), IMPOSSIBLE)
def test_a_models_own_impossible_defaults_are_refused_unless_they_are_not_wanted(
    defaults: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"{words}.*--generation-config headway"):
        read_generation_defaults(source(defaults), "auto")
    assert read_generation_defaults(source(defaults), "headway") == {}


@pytest.mark.parametrize(("defaults", "words"), IMPOSSIBLE)
def test_a_folders_impossible_defaults_are_refused(tmp_path: Path, defaults: dict[str, Any], words: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    with pytest.raises(InvalidConfig, match=words):
        read_generation_defaults(source({}), str(tmp_path))


def test_what_is_not_about_sampling_is_let_be() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [1, 2], "do_sample": "yes"}
    assert read_generation_defaults(source(defaults), "auto") == defaults


async def test_a_source_of_another_framework_is_unpacked_checked_or_left_as_a_name(tmp_path: Path) -> None:
    loader = ProcessLoader(CheckpointConfig(cache_dir=tmp_path / "cache", revision="of the named model alone"))
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("m/model.py", "1")
        archive.writestr("m/weights.bin", "2")
    found = await loader.resolve(ModelConfig(source=str(tmp_path / "m.zip"), framework="python"))
    assert sorted(path.name for path in found.iterdir()) == ["model.py", "weights.bin"]
    name = "pytorch/vision:mobilenet_v2"
    assert await loader.resolve(ModelConfig(source=name, framework="torchvision")) == Path(name)
    with pytest.raises(DownloadFailed, match="must have 0000"):
        await loader.resolve(ModelConfig(source=str(tmp_path / "m.zip"), framework="python", sha256="0" * 64))
