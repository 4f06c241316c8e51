import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headway.checkpoint.checkpoint import INDEX_NAME, WEIGHTS_NAME
from headway.checkpoint.convert import convert
from headway.errors import CorruptCheckpoint, HeadwayError, InvalidConfig, UnsupportedModel


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "modeling.py").write_text("raise SystemExit")
    return folder


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name]) for name in expected
    )


def test_a_pickle_becomes_safetensors_with_the_files_beside_it(source: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "a": whole,
        "turned": whole.T,  # not contiguous
        "part": whole[1:],  # shares its memory
        "half": whole.to(torch.bfloat16),
        "ids": torch.tensor([1, 2]),
        "scalar": torch.tensor(1.5, dtype=torch.float16),
        "none": torch.zeros(0, 3),
    }
    torch.save(tensors, source / "pytorch_model.bin")
    seen: list[tuple[str, int, int | None]] = []
    target = source.parent / "out"
    convert(source, target, lambda *progress: seen.append(progress))
    assert sorted(path.name for path in target.iterdir()) == ["config.json", WEIGHTS_NAME, "tokenizer.json"]
    assert same(load_file(target / WEIGHTS_NAME), tensors)
    assert seen[0][0] == "converting pytorch_model.bin"
    assert seen[-1][1] == seen[-1][2] == (source / "pytorch_model.bin").stat().st_size
    assert [path.name for path in source.parent.iterdir() if "part" in path.name] == []


def test_several_pickles_become_shards_with_an_index(source: Path) -> None:
    torch.save({"a": torch.ones(2)}, source / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.ones(3)}, source / "pytorch_model-00002-of-00002.bin")
    torch.save({"lr": 1}, source / "training_args.bin")
    weight_map = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    target = source.parent / "out"
    convert(source, target)
    index = json.loads((target / INDEX_NAME).read_text())
    assert index["metadata"] == {"total_size": 20}
    assert index["weight_map"] == {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    assert same(load_file(target / index["weight_map"]["b"]), {"b": torch.ones(3)})
    assert not (target / "pytorch_model.bin.index.json").exists()


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_one_file_of_a_training_run_is_read_under_its_key(source: Path, key: str) -> None:
    torch.save({key: {"a": torch.ones(2)}, "epoch": 3}, source / "last.ckpt")
    convert(source / "last.ckpt", source.parent / "out")
    assert same(load_file(source.parent / "out" / WEIGHTS_NAME), {"a": torch.ones(2)})


REFUSED: list[tuple[Any, type[HeadwayError], str]] = [
    ({"a": Bomb()}, UnsupportedModel, "only tensors are read: .*(posix|os)"),
    ({"a": torch.ones(1), "b": 3}, UnsupportedModel, "'b' is int"),
    ({3: torch.ones(1)}, UnsupportedModel, "'3'"),
    (torch.ones(2), UnsupportedModel, "holds Tensor"),
    ({}, UnsupportedModel, "holds dict"),
    ({"a": torch.ones(2, dtype=torch.complex64)}, UnsupportedModel, "complex64"),
    ({"a": torch.ones(2, 2).to_sparse()}, UnsupportedModel, "not a dense tensor"),
    (b"not a pickle at all", CorruptCheckpoint, "cannot be read by torch"),
    (b"", CorruptCheckpoint, "cannot be read by torch"),
]


@pytest.mark.parametrize(("content", "error", "words"), REFUSED)
def test_a_pickle_that_holds_anything_else_is_refused_and_nothing_is_run(
    source: Path, monkeypatch: pytest.MonkeyPatch, content: Any, error: type[HeadwayError], words: str
) -> None:
    monkeypatch.chdir(source.parent)
    path = source / "pytorch_model.bin"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(error, match=words):
        convert(source, source.parent / "out")
    assert sorted(path.name for path in source.parent.iterdir()) == ["in"]


def test_a_target_that_is_in_use_and_a_source_without_pickle_are_refused(source: Path) -> None:
    with pytest.raises(InvalidConfig, match="no pickle weights"):
        convert(source, source.parent / "out")
    with pytest.raises(InvalidConfig, match="no file or folder"):
        convert(source / "gone", source.parent / "out")
    torch.save({"a": torch.ones(1)}, source / "pytorch_model.bin")
    with pytest.raises(InvalidConfig, match="is there already"):
        convert(source, source)
    (source.parent / "out").mkdir()
    convert(source, source.parent / "out")  # an empty folder may be filled


def test_without_torch_the_extra_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "pytorch_model.bin").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidConfig, match=r"headway\[torch\]"):
        convert(source, source.parent / "out")


def test_an_index_that_leads_elsewhere_is_corrupt(source: Path) -> None:
    (source / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../x.bin"}}')
    with pytest.raises(CorruptCheckpoint, match=r"'\.\./x\.bin'"):
        convert(source, source.parent / "out")


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
def test_what_is_no_pickle_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(InvalidConfig, match=f"{name} is no pickle checkpoint.*serve it as it is"):
        convert(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
