"""Quantised types against ggml's own C and the gguf package, bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest

import ggml_quants
from headway.checkpoint.ggml_types import READABLE_TYPES, dequantise, find_type
from headway.checkpoint.gguf import GgufFile
from headway.errors import UnsupportedModel

QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


def bits(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint32)


def test_every_readable_type_is_tried_here_or_is_a_plain_float() -> None:
    assert set(READABLE_TYPES) == {*QUANTISED, "F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", QUANTISED)
def test_any_bytes_are_the_numbers_that_the_gguf_package_makes_of_them(kind: str) -> None:
    # NaN and infinite scales too: a third of a thousand blocks of Q4_1 has one.
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    data = np.random.default_rng(7).integers(0, 256, (2000, block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(bits(dequantise(kind, data.reshape(-1))), bits(expected))


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_rows_are_the_numbers_that_ggmls_c_makes_of_them(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((6, 512), np.float32)
    values[0, :256] = 0.0
    values[1] *= 1e-9  # scales below float16's normal range
    values[2] *= 1e4
    data = ggml_quants.quantise(values, kind)
    found = dequantise(kind, data.reshape(-1))
    np.testing.assert_array_equal(bits(found), bits(ggml_quants.dequantise(data, kind)))
    spread = np.abs(values[3:] - found.reshape(values.shape)[3:]).max() / np.abs(values[3:]).max()
    assert spread < 0.1, "it is not what was quantised"


@pytest.mark.parametrize("num_cols", [256, 768, 288, 576, 80])
@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_file_for_rows_that_do_not_fit_a_type_reads_in_the_type_that_llama_cpp_takes_instead(
    tmp_path: Path, kind: str, num_cols: int
) -> None:
    values = np.random.default_rng(num_cols).standard_normal((5, num_cols), np.float32)
    got = ggml_quants.write_as(tmp_path / "w.gguf", {"w": (values, kind)})["w"]
    narrower = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}[kind]
    assert got == (kind if num_cols % 256 == 0 else narrower if num_cols % 32 == 0 else "F16")
    found = GgufFile(tmp_path / "w.gguf").read("w")
    data = ggml_quants.quantise(values, got)
    expected = gguf.dequantize(data.view(np.float16) if got == "F16" else data, gguf.GGMLQuantizationType[got])
    np.testing.assert_array_equal(bits(found), bits(expected))
    assert found.shape == values.shape


@pytest.mark.parametrize("kind", sorted({kind.name for kind in gguf.GGML_QUANT_SIZES} - set(READABLE_TYPES)))
def test_every_other_type_is_refused_by_name_with_those_that_are_read(tmp_path: Path, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    raw = np.zeros((2, gguf.GGML_QUANT_SIZES[number][1]), np.uint8)
    assert find_type(int(number)) is not None
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_tensor("w", raw, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=rf"type {kind} .*'w'.*F32.*Q6_K"):
        GgufFile(tmp_path / "w.gguf").read("w")
