"""A checkpoint's tensors under canonical names: each is a view of a tensor in a file.

A view says which rows are meant, in which order they stand, and whether rows and columns are exchanged. It is a copy
only while it is read, and where it has to be one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headway.checkpoint.mapping import MappedFile
from headway.checkpoint.pieces import Rows
from headway.checkpoint.raw import Bytes, Int32, RawTensor, raw_of_floats

Float32 = npt.NDArray[np.float32]
ELEMENT_TYPES = ("F32", "F16", "BF16")
"""Whose elements stand alone, not in blocks of a row."""


class TensorPlace(Protocol):
    """Where a tensor is in its file: GgufTensor and SafeTensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Slowest dimension first."""
        ...

    @property
    def type_name(self) -> str:
        """ggml's name of its type."""
        ...

    @property
    def start(self) -> int:
        """Of its first byte."""
        ...

    @property
    def num_bytes(self) -> int:
        """All of it."""
        ...


class TensorFile(Protocol):
    """What an open file offers: GgufFile and SafetensorsFile."""

    @property
    def file(self) -> MappedFile:
        """Its bytes."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorPlace]:
        """By the file's own names."""
        ...

    def read(self, name: str) -> Float32:
        """One tensor, by the file's own name."""
        ...

    def raw(self, name: str) -> tuple[str, Bytes]:
        """Its type and its bytes, a read-only view of the file."""
        ...


@dataclass(frozen=True, slots=True)
class WeightView:
    """One canonical tensor: where it is and what must be done to it."""

    file: TensorFile
    name: str
    """In the file."""
    shape: tuple[int, ...]
    """Of the view."""
    rows: Rows | None = None
    """The part of the first dimension that is meant; None: all of it."""
    interleaved_heads: int | None = None
    """The rows are those of so many heads, with the two halves of a head interleaved (GGUF's q and k): undo it."""
    turned_heads: int | None = None
    """The rows are those of so many heads; `shape` has each head's columns as its rows (keys of latent attention)."""
    is_transposed: bool = False
    """The file has columns as rows (GPT-2's Conv1D); `rows` and `shape` are of the matrix as it should be."""
    shift: float = 0.0
    """Added to each value when it is read (GGUF's norms of Gemma are 1 + w)."""


class MappedWeights:
    """Reads one tensor at a time. Thread-safe: it has no state but the mapped files."""

    def __init__(self, views: Mapping[str, WeightView]) -> None:
        self._views = dict(views)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is, by its canonical name; one that has none stands under the file's name."""
        return {name: view.shape for name, view in self._views.items()}

    def read(self, name: str) -> Float32:
        """The tensor as float32, C-contiguous: a new array, or a read-only view of the file. KeyError if not there."""
        view = self._views[name]
        values = view.file.read(view.name)
        if view.is_transposed:
            values = values.T
        if view.rows is not None:
            values = view.rows.of(values)
        if view.interleaved_heads is not None:
            values = deinterleave_heads(values, view.interleaved_heads)
        if view.turned_heads is not None:
            values = values.reshape(view.turned_heads, -1, values.shape[-1]).swapaxes(1, 2)
        if view.shift:
            values = values + np.float32(view.shift)
        return np.ascontiguousarray(values).reshape(view.shape)

    def raw(self, name: str) -> RawTensor:
        """The tensor's bytes as they are in the file, which is asked to be read ahead. KeyError if not there.

        Raises UnsupportedModel for a type that is not read, CorruptCheckpoint for a file that has changed.
        """
        view = self._views[name]
        kind, data = view.file.raw(view.name)
        if view.shift or (view.turned_heads is not None and kind not in ELEMENT_TYPES):
            return raw_of_floats(self.read(name))
        begin, end = _range(view)
        view.file.file.will_need(view.file.tensors[view.name].start + begin, end - begin)
        order = None
        if view.interleaved_heads is not None:
            order = deinterleaved_rows(view.shape[0], view.interleaved_heads)
        return RawTensor(kind, _rows_of_bytes(view, data), view.shape, order)

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        """The tensor's pages are needed no more: what is resident of them goes. They can still be read again.

        Args:
            rows: only the file's rows [begin, end) of the tensor, so that a large one never is resident whole. Of a
                view whose rows do not lie together all pages go with the last.
        """
        view = self._views[name]
        begin, end = _range(view)
        if rows is not None and _is_scattered(view):
            if rows[1] < view.shape[0]:
                return
        elif rows is not None:
            row_bytes = (end - begin) // view.shape[0]
            begin, end = begin + rows[0] * row_bytes, begin + rows[1] * row_bytes
        view.file.file.release(view.file.tensors[view.name].start + begin, end - begin)

    def type_of(self, name: str) -> str:
        """ggml's name of the tensor's type in the file."""
        view = self._views[name]
        return view.file.tensors[view.name].type_name

    def check_unchanged(self) -> None:
        """Raises CorruptCheckpoint where a file has been written to or cut since it was opened."""
        for file in self._files():
            file.check_unchanged()

    def close(self) -> None:
        """Unmaps the files: nothing is read any more."""
        for file in self._files():
            file.close()

    def _files(self) -> list[MappedFile]:
        return list({id(view.file): view.file.file for view in self._views.values()}.values())


class ZeroFilledWeights:
    """Weights of which only those that fit a program are there, and the rest reads as zeros (`--non-strict`)."""

    def __init__(self, wanted: Mapping[str, tuple[int, ...]], weights: MappedWeights) -> None:
        self._wanted = dict(wanted)
        self._weights = weights
        self._there = weights.shapes()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Exactly what the program wants."""
        return self._wanted

    def read(self, name: str) -> Float32:
        """The checkpoint's tensor where it has the wanted shape, else zeros."""
        if self._there.get(name) == self._wanted[name]:
            return self._weights.read(name)
        return np.zeros(self._wanted[name], np.float32)

    def raw(self, name: str) -> RawTensor:
        """As read(), as it is in the file; zeros are F32."""
        if self._there.get(name) == self._wanted[name]:
            return self._weights.raw(name)
        return raw_of_floats(np.zeros(self._wanted[name], np.float32))

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        """As MappedWeights.release; nothing for zeros."""
        if self._there.get(name) == self._wanted[name]:
            self._weights.release(name, rows)

    def type_of(self, name: str) -> str:
        """The type that raw(name) has."""
        return self._weights.type_of(name) if self._there.get(name) == self._wanted[name] else "F32"

    def check_unchanged(self) -> None:
        """As MappedWeights.check_unchanged."""
        self._weights.check_unchanged()

    def close(self) -> None:
        """As MappedWeights.close."""
        self._weights.close()


def deinterleave_heads(values: Float32, num_heads: int) -> Float32:
    """Rows as Hugging Face has them from rows as llama.cpp's converter leaves them.

    Of a head with rows r0 r1 r2 r3 (halves r0 r1 | r2 r3) the converter writes r0 r2 r1 r3, so that the numbers that
    are rotated together are neighbours. `values`: [num_heads * head_dim, ...].
    """
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def deinterleaved_rows(num_rows: int, num_heads: int) -> Int32:
    """Where deinterleave_heads puts each row, [num_rows]: what was row i is row result[i] afterwards."""
    half = num_rows // num_heads // 2
    head, place, side = np.ogrid[:num_heads, :half, :2]
    target: Int32 = ((head * 2 + side) * half + place).astype(np.int32).reshape(-1)
    return target


def _is_scattered(view: WeightView) -> bool:
    """Whether the view's rows are no run of the file's bytes."""
    return view.is_transposed or view.turned_heads is not None or (view.rows is not None and view.rows.count > 1)


def _range(view: WeightView) -> tuple[int, int]:
    """Where the view's bytes are in its tensor, [begin, end)."""
    tensor = view.file.tensors[view.name]
    if view.rows is None or view.is_transposed:
        return 0, tensor.num_bytes
    row_bytes = tensor.num_bytes // tensor.shape[0]
    return view.rows.first * row_bytes, view.rows.end * row_bytes


def _rows_of_bytes(view: WeightView, data: Bytes) -> Bytes:
    """The view's rows end to end, of all bytes of its tensor: a view of them where they are one run."""
    if not _is_scattered(view):
        begin, end = _range(view)
        return data[begin:end]
    tensor = view.file.tensors[view.name]
    if view.is_transposed:
        element_bytes = data.size // prod(tensor.shape)
        elements = data.view(f"u{element_bytes}").reshape(tensor.shape).T
        rows = elements if view.rows is None else view.rows.of(elements)
    else:
        by_row = data.reshape(tensor.shape[0], -1)
        rows = by_row if view.rows is None else view.rows.of(by_row)
        if view.turned_heads is not None:
            of_head = rows.view(f"u{data.size // prod(tensor.shape)}").reshape(view.turned_heads, -1, tensor.shape[-1])
            rows = of_head.swapaxes(1, 2)
    made: Bytes = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    return made
