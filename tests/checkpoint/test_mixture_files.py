"""Mixtures of experts in both formats: llama.cpp's converter stacks the experts, and they are the same to Headway."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.checkpoint.shape import ModelShape
from headway.errors import UnsupportedModel
from headway.executor.base import StepArrays
from headway.executor.native import NativeExecutor
from headway.executor.native_writer import PlanLimits
from headway.model import make_program
from mixtures import MODELS, make_model, save
from oracles import convert_by_llama_cpp
from program_reference import reference_logits, to_bfloat16

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


def _rewrite(source: Path, target: Path, changes: Mapping[str, Any], *, experts: str | None = None) -> Path:
    """The file with some of its keys changed, and its experts in another type."""
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
        data, kind = np.array(tensor.data), GGMLQuantizationType(tensor.tensor_type)
        if experts is not None and "_exps" in tensor.name:
            kind = GGMLQuantizationType[experts]
            data = quantize(data, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
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


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_stack_of_quantised_experts_is_read_block_by_block(folders: Path, tmp_path: Path, kind: str) -> None:
    plain = open_checkpoint(folders / "mixtral" / "model.gguf")
    path = _rewrite(folders / "mixtral" / "model.gguf", tmp_path / "quantised.gguf", {}, experts=kind)
    checkpoint = open_checkpoint(path)
    for name in (
        f"layers.1.mlp.experts.{expert}.{part}.weight" for expert in (0, 4) for part in ("gate", "up", "down")
    ):
        blocks = quantize(plain.weights.read(name), GGMLQuantizationType[kind])
        assert checkpoint.weights.type_of(name) == kind
        np.testing.assert_array_equal(checkpoint.weights.raw(name).data, blocks.reshape(-1))
        np.testing.assert_array_equal(checkpoint.weights.read(name), dequantize(blocks, GGMLQuantizationType[kind]))
    program = make_program(checkpoint.shape)
    kv = KVStore(program.caches, num_blocks=4, block_size=16, dtype="bfloat16")
    limits = PlanLimits(max_tokens=32, max_selected=32, max_seqs=1, max_context=64)
    native = NativeExecutor(program, checkpoint.weights, kv, threads=2, limits=limits)
    arrays = {name: checkpoint.weights.read(name) for name in program.weights}
    ids = np.arange(3, 35, dtype=np.int32)
    step = StepArrays(
        token_ids=ids,
        positions=np.arange(32, dtype=np.int32),
        query_starts=np.array([0, 32], np.int32),
        context_lens=np.array([32], np.int32),
        block_tables=np.array([[2, 0]], np.int32),
        slots=np.array([*range(32, 48), *range(16)], np.int64),
        logit_rows=np.arange(32, dtype=np.int32),
    )
    quantised = [name for name in program.weights if ".experts." in name]
    wanted = reference_logits(program, arrays, ids.tolist(), keep=to_bfloat16, quantised=quantised)
    errors = np.abs(native.execute(step) - wanted).max(axis=1) / wanted.std()
    assert np.median(errors) < 1e-2
    assert errors.max() < 0.1
