import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from headway.checkpoint.safetensors import SafetensorsFile
from headway.errors import CorruptCheckpoint, ModelError, UnsupportedModel


def tensor(dtype: str = "F32", shape: Any = (2,), start: Any = 0, end: Any = 8, **more: Any) -> dict[str, Any]:
    shape = list(shape) if isinstance(shape, tuple) else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


def write(folder: Path, header: Any, data: int = 8, *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data))
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_equal_the_safetensors_packages(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensors = {
        "odd": torch.ones(3, dtype=torch.uint8),  # those after it start unaligned
        "w": torch.randn(5, 7).to(dtype),
        "scalar": torch.tensor(2.5).to(dtype),
        "none": torch.zeros(0, 4).to(dtype),
        "special": torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0]).to(dtype),
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert set(file.tensors) == set(tensors)
    for name in ("w", "scalar", "none", "special"):
        values = file.read(name)
        assert values.dtype == np.float32
        assert values.flags.aligned
        np.testing.assert_array_equal(values, tensors[name].float().numpy())


WRONG = {
    "three bytes": (b"abc", "3 bytes"),
    "a header longer than the file": ((2**40).to_bytes(8, "little") + b"{}", "header should have"),
    "a header that is not JSON": ((2).to_bytes(8, "little") + b"{x", "not valid JSON"),
    "a header that is not UTF-8": ((2).to_bytes(8, "little") + b"\xff\xfe", "not valid JSON"),
    "a header that is a list": ((2).to_bytes(8, "little") + b"[]", "not an object"),
    "NaN in the header": ((9).to_bytes(8, "little") + b'{"a":NaN}', "not a JSON number"),
    "deep nesting": ((200_000).to_bytes(8, "little") + b"[" * 200_000, "not valid JSON"),
}
WRONG_HEADERS: dict[str, tuple[Any, int, str]] = {
    "a name twice": (b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), 8, "'a' is there twice"),
    "an entry that is text": ({"a": "x"}, 8, "just dtype, shape and data_offsets"),
    "an entry with more": ({"a": tensor(extra=1)}, 8, "just dtype, shape and data_offsets"),
    "a negative size": ({"a": tensor(shape=(-2,))}, 8, "shape of 'a'"),
    "a size that is true": ({"a": tensor(shape=(True, 2))}, 8, "shape of 'a'"),
    "a size that is a fraction": ({"a": tensor(shape=(2.0,))}, 8, "shape of 'a'"),
    "a shape that is text": ({"a": tensor(shape="2")}, 8, "shape of 'a'"),
    "a size over 64 bits": ({"a": tensor(shape=(2**64,))}, 8, "shape of 'a'"),
    "offsets backwards": ({"a": tensor(start=8, end=0)}, 8, "data_offsets of 'a'"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, 8, "data_offsets of 'a'"),
    "bytes that are not the shape's": ({"a": tensor(shape=(3,))}, 8, "has 8 bytes"),
    "sizes whose product overflows": ({"a": tensor(shape=(2**40, 2**40))}, 8, "has 8 bytes"),
    "data cut short": ({"a": tensor()}, 7, "cut short"),
    "data too long": ({"a": tensor()}, 9, "longer than its tensors"),
    "a hole": ({"a": tensor(), "b": tensor(start=12, end=20)}, 20, "hole"),
    "an overlap": ({"a": tensor(), "b": tensor(start=4, end=12)}, 12, "overlap"),
    "metadata that is no object of strings": ({"__metadata__": {"a": 1}, "a": tensor()}, 8, "__metadata__"),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_without_a_sound_header_are_corrupt(tmp_path: Path, case: str) -> None:
    data, words = WRONG[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match=words):
        SafetensorsFile(path)


@pytest.mark.parametrize("case", WRONG_HEADERS)
def test_headers_that_contradict_the_file_are_corrupt(tmp_path: Path, case: str) -> None:
    header, data, words = WRONG_HEADERS[case]
    with pytest.raises(CorruptCheckpoint, match=words):
        SafetensorsFile(write(tmp_path, header, data))


def test_an_unknown_dtype_is_refused_by_name_and_a_known_one_when_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'F7'"):
        SafetensorsFile(write(tmp_path, {"a": tensor("F7")}))
    file = SafetensorsFile(write(tmp_path, {"a": tensor("F8_E4M3", (8,))}))
    with pytest.raises(UnsupportedModel, match=r"F8_E4M3 .*'a'.*F32, F16, BF16"):
        file.read("a")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 190), new=st.binary(min_size=1, max_size=3), cut=st.integers(0, 250))
def test_whatever_the_bytes_are_nothing_but_a_model_error_is_raised(
    tmp_path: Path, at: int, new: bytes, cut: int
) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": tensor("F16", (4,)), "b": tensor("BF16", (2, 2), 8, 16)}
    data = bytearray(write(tmp_path, header, 16).read_bytes())
    data[at : at + len(new)] = new
    path = tmp_path / "mutant.safetensors"
    path.write_bytes(data[: len(data) - cut] if cut < 30 else data)
    try:
        file = SafetensorsFile(path)
        for name in file.tensors:
            file.read(name)
    except ModelError:
        pass
