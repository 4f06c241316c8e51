"""The head of a GGUF file, read front to back: its metadata, and where its tensors are; every number is checked.

    "GGUF" | version u32 | num_tensors u64 | num_entries u64
    entries:  key string | type u32 | value            a string is its length u64 and UTF-8 bytes;
                                                       an array is its type u32, its length u64 and the elements
    tensors:  name string | num_dims u32 | dims u64 ... | type u32 | offset u64
    padding to general.alignment | tensor data, from which the offsets count

Source: docs/gguf.md of ggml.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from headway.checkpoint.ggml_types import READABLE_TYPES, REMOVED_TYPES, GgmlType, find_type
from headway.checkpoint.mapping import MappedFile
from headway.errors import CorruptCheckpoint, UnsupportedModel

Value = str | int | float | bool | list[str] | npt.NDArray[np.generic]

MAGIC = b"GGUF"
_OLD_MAGICS = {b"ggml": "GGML", b"lmgg": "GGML", b"tjgg": "GGJT", b"fmgg": "GGMF", b"algg": "GGLA"}
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_UNPACK = {
    number: Struct(f"<{letter}")
    for number, letter in zip(_SCALARS, ("B", "b", "H", "h", "I", "i", "f", "B", "Q", "q", "d"), strict=True)
}
_BOOL = 7
_MAX_DIMS = 4
_MAX_NAME_BYTES = 1024
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_READ_BYTES = 2 * 1024 * 1024
_U32, _U64 = Struct("<I"), Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is. `shape` is in the usual order, slowest dimension first (GGUF writes the fastest first)."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    start: int
    """Of its first byte in the file."""
    num_bytes: int

    @property
    def type_name(self) -> str:
        """Of its type."""
        return self.type.name


class GgufReader:
    """A position in the file that only moves forward, past what has been checked.

    It reads copies: the parent, whose end would be everybody's, touches no page that could be gone.
    """

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._path = file.path
        self._size = file.size
        self._data = b""  # of the file's start, as much as was needed
        self._at = 0

    def header(self) -> tuple[int, int]:
        self._have(min(4, self._size))
        magic = self._data[:4]
        if magic != MAGIC:
            if old := _OLD_MAGICS.get(magic):
                raise UnsupportedModel(f"{self._path} is an {old} file, older than GGUF: convert the model again")
            self._corrupt(f"a GGUF file starts with {MAGIC!r}, this one with {magic!r}")
        self._at = 4
        version = self._u32("the version")
        if version in (1, 1 << 24, 2 << 24, 3 << 24):
            kind = "of version 1" if version == 1 else "big-endian"
            raise UnsupportedModel(f"{self._path} is a GGUF file {kind}; versions 2 and 3, little-endian, are read")
        if version not in (2, 3):
            self._corrupt(f"version {version} is unknown; 2 and 3 are read")
        num_tensors = self._count("tensors", _MIN_TENSOR_BYTES)
        num_entries = self._count("metadata entries", _MIN_ENTRY_BYTES)
        return num_tensors, num_entries

    def entries(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key, value in self._entries(count):
            if key in found:
                self._corrupt(f"the metadata key {key!r} is there twice")
            found[key] = value
        return found

    def find(self, wanted: str, count: int) -> Value | None:
        """The first entry of this key; what stands behind it is not read."""
        return next((value for key, value in self._entries(count) if key == wanted), None)

    def tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        found: dict[str, tuple[tuple[int, ...], GgmlType, int, int]] = {}
        for number in range(count):
            name = self._string(f"the name of tensor {number}")
            if not name or len(name) > _MAX_NAME_BYTES:
                self._corrupt(f"tensor {number} has a name of {len(name)} characters")
            if name in found:
                self._corrupt(f"the tensor {name!r} is there twice")
            found[name] = self._tensor(name, alignment)
        base = -(-self._at // alignment) * alignment
        for name, (_, _, offset, num_bytes) in found.items():
            if base + offset + num_bytes > self._size:
                self._corrupt(
                    f"the tensor {name!r} ends at byte {base + offset + num_bytes}, the file at {self._size}: "
                    "it is cut short, download it again"
                )
        return {
            name: GgufTensor(name, shape, kind, base + offset, num_bytes)
            for name, (shape, kind, offset, num_bytes) in found.items()
        }

    def _entries(self, count: int) -> Iterator[tuple[str, Value]]:
        for number in range(count):
            key = self._string(f"the key of metadata entry {number}")
            if not key or len(key) > _MAX_NAME_BYTES:
                self._corrupt(f"metadata entry {number} has a key of {len(key)} characters")
            yield key, self._value(key)

    def _tensor(self, name: str, alignment: int) -> tuple[tuple[int, ...], GgmlType, int, int]:
        num_dims = self._u32(f"the dimensions of {name!r}")
        if not 1 <= num_dims <= _MAX_DIMS:
            self._corrupt(f"the tensor {name!r} has {num_dims} dimensions; 1 to {_MAX_DIMS} are possible")
        dims = [self._u64(f"the dimensions of {name!r}") for _ in range(num_dims)]
        type_number = self._u32(f"the type of {name!r}")
        offset = self._u64(f"the offset of {name!r}")
        kind = self._type(name, type_number)
        num_elements = 1
        for dim in dims:
            num_elements *= dim  # Python's integers do not overflow: the size is checked against the file's
        if num_elements == 0:
            self._corrupt(f"the tensor {name!r} has the shape {dims}")
        if dims[0] % kind.block_size:
            self._corrupt(f"the rows of {name!r} have {dims[0]} numbers, {kind.name} has blocks of {kind.block_size}")
        if offset % alignment:
            self._corrupt(f"the tensor {name!r} is at {offset}, not a multiple of the alignment {alignment}")
        return tuple(reversed(dims)), kind, offset, num_elements // kind.block_size * kind.block_bytes

    def _type(self, name: str, number: int) -> GgmlType:
        if kind := find_type(number):
            return kind
        if removed := REMOVED_TYPES.get(number):
            raise UnsupportedModel(f"{self._path}: the tensor {name!r} has the type {removed}, which ggml has removed")
        raise UnsupportedModel(
            f"{self._path}: the tensor {name!r} has the type number {number}, which is unknown: "
            f"convert the model to one of {', '.join(READABLE_TYPES)}"
        )

    def _value(self, key: str) -> Value:
        kind = self._u32(f"the type of {key!r}")
        if kind == _STRING:
            return self._string(repr(key))
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _UNPACK:
            self._corrupt(f"the metadata key {key!r} has the type number {kind}, which is unknown")
        value: int | float = self._unpack(_UNPACK[kind], repr(key))
        if kind == _BOOL:
            if value > 1:
                self._corrupt(f"the metadata key {key!r} is a truth value of {value}")
            return bool(value)
        return value

    def _array(self, key: str) -> list[str] | npt.NDArray[np.generic]:
        kind = self._u32(f"the type of {key!r}")
        if kind == _STRING:
            return self._strings(key, self._count(f"elements in {key!r}", 8))
        if kind == _ARRAY:
            raise UnsupportedModel(f"{self._path}: the metadata key {key!r} is an array of arrays")
        if kind not in _SCALARS:
            self._corrupt(f"the elements of {key!r} have the type number {kind}, which is unknown")
        dtype = np.dtype(_SCALARS[kind])
        count = self._count(f"elements in {key!r}", dtype.itemsize)
        self._have(self._at + count * dtype.itemsize)
        raw = np.frombuffer(self._data, "u1" if kind == _BOOL else dtype, count, self._at)
        if kind == _BOOL and np.any(raw > 1):
            self._corrupt(f"the metadata key {key!r} has truth values that are neither 0 nor 1")
        self._at += count * dtype.itemsize
        return raw.astype(dtype)

    def _strings(self, key: str, count: int) -> list[str]:
        # The hot loop: a vocabulary and its merges are 100,000 strings, so no call is made for each.
        data, size, at, length_of = self._data, self._size, self._at, _U64.unpack_from
        found = []
        try:
            for _ in range(count):
                start = at + 8
                if start > len(data):
                    data = self._have(min(start, size))
                at = start + length_of(data, at)[0]
                if at > len(data):
                    if at > size:
                        break
                    data = self._have(at)
                found.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            self._corrupt(f"element {len(found)} of {key!r} is not UTF-8: {error}")
        except StructError:
            at = size + 1
        if at > size:
            self._corrupt(f"element {len(found)} of {key!r} goes over the end of the file")
        self._at = at
        return found

    def _string(self, what: str) -> str:
        length = self._count(f"bytes in {what}", 1)
        self._have(self._at + length)
        raw = self._data[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self._corrupt(f"{what} is not UTF-8: {error}")

    def _count(self, what: str, min_bytes: int) -> int:
        """A number of things that take at least min_bytes each, all of which must fit in the rest of the file."""
        count = self._u64(f"the number of {what}")
        if count * min_bytes > self._size - self._at:
            self._corrupt(f"{count} {what} cannot be in the {self._size - self._at} bytes that follow")
        return count

    def _u32(self, what: str) -> int:
        return int(self._unpack(_U32, what))

    def _u64(self, what: str) -> int:
        return int(self._unpack(_U64, what))

    def _unpack(self, form: Struct, what: str) -> int | float:
        if self._at + form.size > self._size:
            self._corrupt(f"the file ends in {what}: it is cut short, download it again")
        self._have(self._at + form.size)
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        number: int | float = value
        return number

    def _have(self, end: int) -> bytes:
        """The file's start up to `end` at least, which must be in the file."""
        there = len(self._data)
        if end > there:
            wanted = max(end - there, there, _READ_BYTES)
            self._data += self._file.read(there, min(wanted, self._size - there))
        return self._data

    def _corrupt(self, why: str) -> NoReturn:
        raise CorruptCheckpoint(f"{self._path} is damaged at byte {self._at}: {why}")
