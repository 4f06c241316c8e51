"""Reads safetensors files: the header at once, tensor data when asked for; every number is checked.

    length of the header u64 | header: JSON {name: {"dtype", "shape", "data_offsets": [start, end]}} | tensor data

The tensors must fill the data without a hole and without an overlap, as the format demands.
Source: the README of the safetensors repository.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headway.checkpoint.fields import parse_json
from headway.checkpoint.ggml_types import dequantise
from headway.checkpoint.mapping import MappedFile
from headway.errors import CorruptCheckpoint, UnsupportedModel

MAX_HEADER_BYTES = 100_000_000
READABLE_DTYPES = ("F32", "F16", "BF16")
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_MAX_DIMS = 64


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """Where a tensor is."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int
    """Of its first byte in the file."""
    num_bytes: int

    @property
    def type_name(self) -> str:
        """dtype: ggml calls those that are read the same."""
        return self.dtype


class SafetensorsFile:
    """An open, checked safetensors file. Raises CorruptCheckpoint where its bytes contradict themselves."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        data_start, header = self._header()
        self.tensors: Mapping[str, SafeTensor] = {
            name: self._tensor(name, entry, data_start) for name, entry in header.items() if name != "__metadata__"
        }
        self._check_metadata(header.get("__metadata__"))
        self._check_contiguous(data_start)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32 in its shape; of an aligned F32 tensor a read-only view of the file.

        Raises UnsupportedModel for a dtype that is not one of READABLE_DTYPES.
        """
        self.check_readable([name])
        tensor = self.tensors[name]
        return dequantise(tensor.dtype, self.file.array(tensor.start, tensor.num_bytes)).reshape(tensor.shape)

    def raw(self, name: str) -> tuple[str, npt.NDArray[np.uint8]]:
        """The tensor's type and its bytes, a read-only view of the file. Raises UnsupportedModel as read()."""
        self.check_readable([name])
        tensor = self.tensors[name]
        return tensor.dtype, self.file.array(tensor.start, tensor.num_bytes)

    def check_readable(self, names: list[str]) -> None:
        """Raises UnsupportedModel, naming the dtypes, if one of these tensors cannot be read."""
        unread = {name: self.tensors[name].dtype for name in names}
        unread = {name: dtype for name, dtype in unread.items() if dtype not in READABLE_DTYPES}
        if unread:
            raise UnsupportedModel(
                f"{self.file.path}: {len(unread)} tensors have the dtype {', '.join(sorted(set(unread.values())))} "
                f"(first {next(iter(unread))!r}), which is not supported: {', '.join(READABLE_DTYPES)} are"
            )

    def _header(self) -> tuple[int, dict[str, Any]]:
        if self.file.size < 8:
            self._corrupt(f"it has {self.file.size} bytes")
        length = int.from_bytes(self.file.read(0, 8), "little")
        if length > min(MAX_HEADER_BYTES, self.file.size - 8):
            self._corrupt(f"its header should have {length} bytes, of {self.file.size - 8} that follow")
        header = parse_json(self.file.read(8, length), f"the header of {self.file.path}")
        if not isinstance(header, dict):
            self._corrupt("its header is not an object")
        return 8 + length, header

    def _tensor(self, name: str, entry: Any, data_start: int) -> SafeTensor:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            self._corrupt(f"the entry of {name!r} does not have just dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not _are_counts(shape) or len(shape) > _MAX_DIMS:
            self._corrupt(f"the shape of {name!r} is {str(shape)[:200]}")
        if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1]:
            self._corrupt(f"the data_offsets of {name!r} are {str(offsets)[:200]}")
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise UnsupportedModel(f"{self.file.path}: the dtype of {name!r} is {str(dtype)[:50]!r}, which is unknown")
        num_bits = prod(shape) * _BITS[dtype]
        start, end = offsets
        if num_bits != (end - start) * 8:
            self._corrupt(f"{name!r} has {end - start} bytes, {dtype} of the shape {shape} has {num_bits / 8:g}")
        return SafeTensor(name, tuple(shape), dtype, data_start + start, end - start)

    def _check_metadata(self, metadata: Any) -> None:
        if metadata is None:
            return
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            self._corrupt("__metadata__ is not an object of strings")

    def _check_contiguous(self, data_start: int) -> None:
        end, before = data_start, "the header"
        for tensor in sorted(self.tensors.values(), key=lambda tensor: (tensor.start, tensor.num_bytes)):
            if tensor.start != end:
                found = "overlap" if tensor.start < end else "have a hole between them"
                self._corrupt(f"{before!r} and {tensor.name!r} {found}")
            end, before = tensor.start + tensor.num_bytes, tensor.name
        if end != self.file.size:
            state = "cut short, download it again" if end > self.file.size else "longer than its tensors"
            self._corrupt(f"the tensors end at byte {end}, the file at {self.file.size}: it is {state}")

    def _corrupt(self, why: str) -> NoReturn:
        raise CorruptCheckpoint(f"{self.file.path} is damaged: {why}")


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 for value in values
    )
