"""What is packed for the kernels is what the file says: bit for bit where run_form.py claims it, bounded where not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

import ggml_quants
from checkpoint.conftest import TOKENS, GgufModel, quantised_model
from headway import _native
from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.raw import raw_of_floats
from headway.checkpoint.weights import MappedWeights, WeightView
from headway.config import Quantization
from headway.errors import InvalidConfig, TensorMismatch
from headway.executor.native_weights import MatrixLoader, interleaved_rows
from headway.planner.run_form import RUNNABLE_TYPES, choose_run_form

EXACT = [kind for kind in RUNNABLE_TYPES if choose_run_form(kind, None).is_exact]


def unpacked(matrix: _native.PackedMatrix) -> np.ndarray:
    out = np.full(matrix.shape, np.nan, np.float32)
    matrix.dequantise(out)
    return out


def loader_of(
    weights: MappedWeights, quantization: Quantization | None = None, **shapes: tuple[int, ...]
) -> MatrixLoader:
    return MatrixLoader(weights, dict(weights.shapes()) | shapes, _native.Workers(2), quantization=quantization)


def one_matrix(folder: Path, values: np.ndarray, kind: str) -> tuple[MappedWeights, str]:
    """The file's matrix "w" as weights, and the type that llama.cpp gives it."""
    got = ggml_quants.write_as(folder / "w.gguf", {"w": (values, kind)})["w"]
    return MappedWeights({"w": WeightView(GgufFile(folder / "w.gguf"), "w", values.shape)}), got


@pytest.mark.parametrize("shape", [(16, 256), (37, 512), (1, 288), (50, 64), (33, 40)])
@pytest.mark.parametrize("kind", EXACT)
def test_no_value_changes_in_the_forms_that_hold_them(tmp_path: Path, kind: str, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(shape[0]).standard_normal(shape, np.float32)
    values[0, :32] = 0.0
    weights, got = one_matrix(tmp_path, values, kind)
    loader = loader_of(weights)
    matrix = loader.joined(("w",))
    expected = weights.read("w")
    if got == "F16":  # rows of 40 numbers are no whole blocks
        expected = torch.from_numpy(np.array(expected)).bfloat16().float().numpy()
    np.testing.assert_array_equal(unpacked(matrix), expected)
    assert matrix.num_bytes == choose_run_form(got, None).num_bytes(*shape)


@pytest.mark.parametrize("kind", ["F16", "F32"])
def test_floats_are_rounded_to_the_nearest_bfloat16(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((20, 96), np.float32)
    values[0, :8] = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 65504, 0, -0.0, 2**-14, 2**-24]  # ties, and the ends of F16
    weights, _ = one_matrix(tmp_path, values, kind)
    expected = torch.from_numpy(np.array(weights.read("w"))).bfloat16().float().numpy()
    found = unpacked(loader_of(weights).joined(("w",)))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert np.any(found != weights.read("w"))


def test_rows_of_several_tensors_and_interleaved_heads_stand_in_their_order(tmp_path: Path) -> None:
    weights = open_checkpoint(quantised_model().write(tmp_path / "m.gguf")).weights
    for name in ("attn.q", "attn.k", "mlp.down"):
        found = unpacked(loader_of(weights).joined((f"layers.0.{name}.weight",)))
        np.testing.assert_array_equal(found, weights.read(f"layers.0.{name}.weight"))

    changes = {
        name: (np.random.default_rng(len(name)).standard_normal(shape, np.float32), Type.Q8_0)
        for name, shape in {"blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32)}.items()
    }
    alike = GgufModel(
        keys={"embedding_length": 32},
        tensors={"token_embd.weight": (np.ones((len(TOKENS), 32), np.float32), Type.F32)} | changes,
    )
    weights = open_checkpoint(alike.write(tmp_path / "alike.gguf")).weights
    names = ("layers.0.attn.q.weight", "layers.0.attn.k.weight")
    found = unpacked(loader_of(weights).joined(names))
    np.testing.assert_array_equal(found, np.concatenate([weights.read(name) for name in names]))


@pytest.mark.parametrize("height", [16, 24, 40])
def test_a_gate_and_its_up_matrix_take_turns_of_sixteen_rows(height: int) -> None:
    arrays = {
        name: np.random.default_rng(len(name)).standard_normal((height, 32), np.float32) for name in ("gate", "up")
    }
    arrays = {name: torch.from_numpy(array).bfloat16().float().numpy() for name, array in arrays.items()}

    class Arrays:
        def read(self, name: str) -> np.ndarray:
            return arrays[name]

    loader = MatrixLoader(Arrays(), dict.fromkeys(arrays, (height, 32)), _native.Workers(1))
    found = unpacked(loader.gated("gate", "up"))
    padded = -(-height // 16) * 16
    assert found.shape == (2 * padded, 32)
    gate_rows, up_rows = interleaved_rows(height)
    np.testing.assert_array_equal(found[gate_rows], arrays["gate"])
    np.testing.assert_array_equal(found[up_rows], arrays["up"])
    assert (gate_rows[:2].tolist(), up_rows[:2].tolist()) == ([0, 1], [16, 17])
    rest = np.delete(found, np.concatenate([gate_rows, up_rows]), 0)
    assert not rest.any()


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("quantization", "levels"), [("int8", 127), ("int4", 15)])
def test_quantised_weights_are_within_half_a_level(
    tmp_path: Path, kind: str, quantization: Quantization, levels: int
) -> None:
    values = np.random.default_rng(9).standard_normal((40, 96), np.float32)
    weights, _ = one_matrix(tmp_path, values, kind)
    exact = weights.read("w").reshape(40, 3, 32).astype(np.float64)
    found = unpacked(loader_of(weights, quantization).joined(("w",))).reshape(40, 3, 32)
    spread = np.abs(exact).max(-1) if quantization == "int8" else exact.max(-1) - exact.min(-1)
    # Half a level, and what rounding the scale (and the min) to float16 moves a weight by: 2**-11 of it at most.
    largest = np.abs(exact).max(-1)
    bound = spread / levels / 2 * (1 + 2**-10) + 2**-10 * largest + spread * 2**-10
    assert (np.abs(found - exact).max(-1) <= bound).all()
    assert np.abs(found - exact).max() > 0


def test_quantization_of_what_has_no_number_names_the_tensor(tmp_path: Path) -> None:
    values = np.ones((3, 32), np.float32)
    values[1, 4] = np.inf
    weights, _ = one_matrix(tmp_path, values, "F32")
    with pytest.raises(
        InvalidConfig, match=r"tensor 'w': packed row 1 has the weight inf, .* load without quantization"
    ):
        loader_of(weights, "int8").joined(("w",))
    assert np.isinf(unpacked(loader_of(weights).joined(("w",)))).sum() == 1


def test_a_shape_that_is_not_the_programs_is_told() -> None:
    class Wrong:
        def raw(self, name: str):
            return raw_of_floats(np.ones((3, 32), np.float32))

        def release(self, name: str, rows=None) -> None:
            pass

    with pytest.raises(TensorMismatch, match=r"'w' is \[3, 32\] in the checkpoint, must be \[4, 32\]"):
        MatrixLoader(Wrong(), {"w": (4, 32)}, _native.Workers(1)).joined(("w",))


def test_pages_are_released_while_a_tensor_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.executor.native_weights._PART_BYTES", 10 * 256)
    values = np.random.default_rng(2).standard_normal((25, 64), np.float32)
    weights, _ = one_matrix(tmp_path, values, "F32")
    released: list[tuple[int, int]] = []
    release = MappedWeights.release
    monkeypatch.setattr(
        MappedWeights, "release", lambda self, name, rows: (released.append(rows), release(self, name, rows))[1]
    )
    found = unpacked(loader_of(weights).joined(("w",)))
    assert released == [(0, 10), (10, 20), (20, 25)]
    np.testing.assert_array_equal(found, torch.from_numpy(values).bfloat16().float().numpy())
