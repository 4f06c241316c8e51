"""A tensor's bytes as the file has them, and the pages behind them."""

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

from checkpoint.conftest import random_tensors
from headway.checkpoint.checkpoint import Checkpoint, open_checkpoint
from headway.checkpoint.ggml_types import dequantise
from headway.checkpoint.raw import RawTensor, raw_of_floats
from headway.checkpoint.safetensors import SafetensorsFile
from headway.checkpoint.weights import MappedWeights, WeightView, ZeroFilledWeights, deinterleaved_rows
from headway.errors import CorruptCheckpoint


def rebuilt(raw: RawTensor) -> np.ndarray:
    """The canonical tensor of its bytes, row by row."""
    rows = dequantise(raw.type, raw.data).reshape(raw.shape)
    if raw.row_order is None:
        return rows
    result = np.empty_like(rows)
    for source, target in enumerate(raw.row_order):
        result[target] = rows[source]
    return result


@pytest.mark.parametrize("fuse", [False, True])
def test_raw_rows_in_their_order_are_what_read_gives(write_gguf: Callable[..., Path], fuse: bool) -> None:
    kinds = {"blk.0.attn_output.weight": Type.F16, "blk.0.ffn_gate.weight": Type.BF16}
    changed = {name: (random_tensors()[name][0], kind) for name, kind in kinds.items()}
    without: tuple[str, ...] = ()
    if fuse:
        parts = [random_tensors()[f"blk.0.attn_{part}.weight"][0] for part in "qkv"]
        changed["blk.0.attn_qkv.weight"] = (np.concatenate(parts), Type.F32)
        without = tuple(f"blk.0.attn_{part}.weight" for part in "qkv")
    weights = open_checkpoint(write_gguf(tensors=changed, without=without)).weights

    assert weights.raw("layers.0.attn.o.weight").type == "F16"
    assert weights.type_of("layers.0.mlp.gate.weight") == "BF16"
    assert weights.raw("layers.0.attn.q.weight").row_order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    for name in weights.shapes():
        raw = weights.raw(name)
        assert not raw.data.flags.writeable
        assert raw.shape == weights.shapes()[name]
        np.testing.assert_array_equal(rebuilt(raw), weights.read(name), err_msg=name)


def test_rows_of_quantised_blocks_are_cut_where_rows_begin(write_gguf: Callable[..., Path]) -> None:
    wide = np.random.default_rng(3).standard_normal((8, 64), np.float32)
    raw = open_checkpoint(write_gguf(tensors={"blk.0.ffn_down.weight": (wide, Type.Q4_1)})).weights.raw(
        "layers.0.mlp.down.weight"
    )
    assert (raw.type, raw.num_rows, raw.row_bytes, raw.data.size) == ("Q4_1", 8, 40, 320)
    np.testing.assert_array_equal(rebuilt(raw), gguf.dequantize(gguf.quantize(wide, Type.Q4_1), Type.Q4_1))


@pytest.mark.parametrize(("heads", "rows"), [(1, 2), (2, 8), (3, 6), (4, 64)])
def test_the_row_order_of_interleaved_heads_undoes_the_converters_swap(heads: int, rows: int) -> None:
    # conversion/base.py of llama.cpp: reshape(heads, 2, rows / heads / 2).swapaxes(1, 2)
    rows_of_file = np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)
    assert deinterleaved_rows(rows, heads).tolist() == rows_of_file.tolist()


def test_floats_that_are_no_files_are_raw_without_a_copy() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw = raw_of_floats(values)
    assert (raw.type, raw.shape, raw.row_bytes) == ("F32", (2, 3), 12)
    assert np.shares_memory(raw.data, values)
    assert values.flags.writeable


def test_what_is_missing_is_raw_zeros(write_gguf: Callable[..., Path]) -> None:
    weights = open_checkpoint(write_gguf()).weights
    filled = ZeroFilledWeights({"embed.weight": (8, 8), "gone": (4, 3)}, weights)
    assert filled.raw("embed.weight").data.tobytes() == weights.raw("embed.weight").data.tobytes()
    assert rebuilt(filled.raw("gone")).tolist() == np.zeros((4, 3)).tolist()
    assert (filled.type_of("gone"), filled.release("gone")) == ("F32", None)


def resident_pages(path: Path) -> int:
    """Pages of the file that this process has mapped and resident."""
    found = 0
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].count("-") == 1 and not line.startswith(("VmFlags", "Rss")):
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024 // os.sysconf("SC_PAGE_SIZE")
    return found


def test_released_rows_leave_the_process_and_can_be_read_again(tmp_path: Path) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    values = np.random.default_rng(0).standard_normal((256, page), np.float32)  # 4 pages a row
    path = tmp_path / "model.safetensors"
    save_file({"w": values}, path)
    file = SafetensorsFile(path)
    weights = MappedWeights({"w": WeightView(file, "w", values.shape)})
    raw = weights.raw("w")

    assert int(raw.data[::page].sum()) >= 0  # touches each page
    assert resident_pages(path) >= 1024
    weights.release("w", (0, 128))
    assert 512 <= resident_pages(path) <= 512 + 2
    weights.release("w")
    assert resident_pages(path) <= 2
    np.testing.assert_array_equal(rebuilt(raw), values)


@pytest.fixture
def opened(write_gguf: Callable[..., Path]) -> Checkpoint:
    return open_checkpoint(write_gguf())


@pytest.mark.parametrize("read", ["raw", "read", "check_unchanged"])
def test_a_file_that_is_written_to_is_not_read_on(opened: Checkpoint, read: str) -> None:
    with opened.path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(opened.path, ns=(1, 1))  # a clock may be too coarse to tell the two writes apart
    arguments = () if read == "check_unchanged" else ("embed.weight",)
    with pytest.raises(CorruptCheckpoint, match="been written to since it was opened"):
        getattr(opened.weights, read)(*arguments)


def test_a_file_that_is_cut_names_both_sizes(opened: Checkpoint) -> None:
    size = opened.path.stat().st_size
    os.truncate(opened.path, 100)
    with pytest.raises(CorruptCheckpoint, match=f"shrunk from {size} to 100 bytes"):
        opened.weights.check_unchanged()


def test_a_file_that_another_replaces_by_a_rename_is_read_on(opened: Checkpoint, tmp_path: Path) -> None:
    before = opened.weights.read("embed.weight").copy()
    (tmp_path / "other").write_bytes(b"something else")
    (tmp_path / "other").rename(opened.path)
    opened.weights.check_unchanged()
    np.testing.assert_array_equal(opened.weights.read("embed.weight"), before)


def test_a_closed_file_is_unmapped_once_no_array_of_it_is_left(opened: Checkpoint) -> None:
    maps = Path("/proc/self/maps")
    kept = opened.weights.raw("embed.weight")
    opened.weights.close()
    assert kept.data.sum() >= 0  # an array keeps its pages: this does not fault
    assert str(opened.path) in maps.read_text()
    del kept
    opened.weights.close()
    assert str(opened.path) not in maps.read_text()
