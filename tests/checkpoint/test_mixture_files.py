"""Mixtures of experts in both formats: llama.cpp's converter stacks the experts, and they are the same to Headway."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel
from mixtures import MODELS, make_model, save
from oracles import convert_by_llama_cpp

NAMES = [name for name in MODELS if name not in ("mixtral-window", "qwen2_moe-layers", "deepseek_v3-yarn")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each model, with its GGUF file model.gguf inside."""
    root = tmp_path_factory.mktemp("mixtures")
    torch.set_num_threads(1)
    jobs = []
    for name in NAMES:
        folder = save(make_model(name), root / name)
        _with_scoring(folder, name)
        jobs.append((folder, folder / "model.gguf", False))
    convert_by_llama_cpp(jobs)
    return root


def _with_scoring(folder: Path, name: str) -> None:
    """DeepSeek's own config.json has it, transformers' does not."""
    if name.startswith("deepseek_v3"):
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text(config.replace("{", '{"scoring_func": "sigmoid",', 1))


def _both(folders: Path, name: str) -> tuple[Checkpoint, Checkpoint]:
    return open_checkpoint(folders / name), open_checkpoint(folders / name / "model.gguf")


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_have_the_same_weights(folders: Path, name: str) -> None:
    folder, file = _both(folders, name)
    assert file.weights.shapes() == folder.weights.shapes()
    for weight in folder.weights.shapes():
        np.testing.assert_array_equal(file.weights.read(weight), folder.weights.read(weight), err_msg=weight)


@pytest.mark.parametrize("name", NAMES)
def test_raw_rows_are_those_that_are_read(folders: Path, name: str) -> None:
    for checkpoint in _both(folders, name):
        for weight in checkpoint.weights.shapes():
            raw = checkpoint.weights.raw(weight)
            rows = raw.data.view(np.float32).reshape(raw.shape)
            wanted = checkpoint.weights.read(weight)
            np.testing.assert_array_equal(rows, wanted if raw.row_order is None else wanted[raw.row_order])
            checkpoint.weights.release(weight)


@pytest.mark.parametrize("name", NAMES)
def test_both_formats_have_the_same_shape(folders: Path, name: str) -> None:
    folder, file = _both(folders, name)
    assert file.shape == dataclasses.replace(_as_gguf_says(folder.shape), rope=file.shape.rope)
    assert folder.shape.rope is not None
    assert file.shape.rope is not None
    assert (file.shape.rope.dims, file.shape.rope.theta) == (folder.shape.rope.dims, folder.shape.rope.theta)


def _as_gguf_says(shape: ModelShape) -> ModelShape:
    """Numbers in float32; what llama.cpp has fixed for an architecture."""
    experts = shape.experts
    assert experts is not None
    if shape.architecture == "deepseek_v2" and experts.num_groups == 1:
        experts = dataclasses.replace(experts, top_groups=1)
    return dataclasses.replace(shape, norm_eps=float(np.float32(shape.norm_eps)), experts=experts)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_an_expert_of_a_file_is_a_view_of_the_stack(folders: Path, name: str) -> None:
    file = open_checkpoint(folders / name / "model.gguf")
    experts = file.shape.experts
    assert experts is not None
    ups = [file.weights.raw(f"layers.0.mlp.experts.{expert}.up.weight").data for expert in range(experts.num_experts)]
    starts = [data.__array_interface__["data"][0] for data in ups]
    assert np.diff(starts).tolist() == [data.size for data in ups[:-1]]
    assert not any(data.flags.owndata for data in ups)


def _rewrite(source: Path, target: Path, changes: Mapping[str, Any]) -> Path:
    """The file with some of its keys changed; None leaves one out."""
    reader = GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()  # type: ignore[union-attr]
    writer = GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = changes.get(key.removeprefix(f"{architecture}."), field.contents())
        if value is not None:
            writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=GGMLQuantizationType(tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"expert_gating_func": 4}, "expert_gating_func 4; 1"), ({"expert_count": 2000}, "2000 experts; at most 1024")],
)
def test_what_is_not_supported_is_refused_by_name(
    folders: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    changed = _rewrite(folders / "deepseek_v3" / "model.gguf", tmp_path / "changed.gguf", changes)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(changed)
