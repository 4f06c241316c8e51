"""A checkpoint's matrices packed for the native kernels: from the file's own blocks, tensor by tensor, on all threads.

What has been packed is released in the file, so that a load holds the run form and little more. A matrix that several
ops use (a tied embedding) is packed and held once.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headway import _native
from headway.checkpoint.raw import RawTensor, raw_of_floats
from headway.config import Quantization
from headway.errors import InvalidConfig, OutOfMemory, TensorMismatch, UnsupportedModel
from headway.executor.base import Float32, Int32, Weights
from headway.planner.run_form import RunForm, choose_run_form

_PART_BYTES = 16 * 1024 * 1024
"""So much of a tensor is read, packed and released at once."""
LANES = 16


class MatrixLoader:
    """Reads a checkpoint into run forms.

    Args:
        weights: tensors under the Program's names.
        shapes: what the Program says of each.
        workers: the threads that pack.
        quantization: makes matrices of floats narrower.
        vocabulary: names of embedding tables and heads.
        keeps_floats: matrices that bfloat16 would round stay float32.
        unquantised: names of matrices that `quantization` leaves as they are.
    """

    def __init__(
        self,
        weights: Weights,
        shapes: Mapping[str, tuple[int, ...]],
        workers: _native.Workers,
        *,
        quantization: Quantization | None = None,
        vocabulary: frozenset[str] = frozenset(),
        keeps_floats: bool = False,
        unquantised: frozenset[str] = frozenset(),
    ) -> None:
        self._unquantised = unquantised
        self._weights, self._shapes, self._workers = weights, shapes, workers
        self._quantization, self._vocabulary = quantization, vocabulary
        self._keeps_floats = keeps_floats
        self._forms: dict[str, RunForm] = {}
        self._matrices: dict[tuple[str, ...], _native.PackedMatrix] = {}
        self._vectors: dict[str, Float32] = {}
        self.num_bytes = 0
        """Of all matrices so far."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that the Program says."""
        return self._shapes[name]

    def form(self, name: str) -> RunForm:
        """How a matrix is computed with. Raises UnsupportedModel, InvalidConfig: choose_run_form."""
        if name not in self._forms:
            kind = self._raw(name).type
            quantization = None if name in self._unquantised else self._quantization
            self._forms[name] = choose_run_form(
                kind, quantization, is_vocabulary=name in self._vocabulary, keeps_floats=self._keeps_floats
            )
        return self._forms[name]

    def vector(self, name: str) -> Float32:
        """A tensor as float32, of its own. Raises TensorMismatch."""
        if name not in self._vectors:
            values = np.array(self._weights.read(name), np.float32, order="C")
            self._check(name, values.shape)
            self._release(name, None)
            self._vectors[name] = values
        return self._vectors[name]

    def joined(self, names: Sequence[str]) -> _native.PackedMatrix:
        """Matrices of one form, one under another. Raises TensorMismatch, OutOfMemory."""
        heights = [self._shapes[name][0] for name in names]
        starts = np.cumsum([0, *heights[:-1]])
        rows = [start + np.arange(height) for start, height in zip(starts, heights, strict=True)]
        return self._packed(tuple(names), rows, sum(heights))

    def gated(self, gate: str, up: str) -> _native.PackedMatrix:
        """Two matrices of one form and shape, in turns of 16 rows: as a product with a gate needs them."""
        height = self._shapes[gate][0]
        return self._packed((gate, up), list(interleaved_rows(height)), 2 * -(-height // LANES) * LANES)

    def stacked(self, names: Sequence[str]) -> _native.PackedMatrix:
        """Matrices of one form and shape, one under another, each from a panel of 16 rows on.

        Raises as joined(), and UnsupportedModel where the forms differ.
        """
        self._check_forms(names)
        height = self._shapes[names[0]][0]
        step = aligned_rows(height)
        rows = [at * step + np.arange(height) for at in range(len(names))]
        return self._packed(tuple(names), rows, len(names) * step)

    def stacked_gated(self, gates: Sequence[str], ups: Sequence[str]) -> _native.PackedMatrix:
        """Pairs of matrices as gated() has them, one pair under another. Raises as stacked()."""
        self._check_forms([*gates, *ups])
        height = self._shapes[gates[0]][0]
        step = 2 * aligned_rows(height)
        pairs = [interleaved_rows(height)] * len(gates)
        rows = [at * step + part for at, pair in enumerate(pairs) for part in pair]
        names = tuple(name for pair in zip(gates, ups, strict=True) for name in pair)
        return self._packed(names, rows, len(gates) * step)

    def by_head(self, name: str) -> _native.PackedMatrix:
        """The matrices of a tensor [heads, height, width], one under another as stacked(). Raises as joined()."""
        heads, height, _ = self._shapes[name]
        step = aligned_rows(height)
        rows = (np.arange(heads)[:, None] * step + np.arange(height)).reshape(-1)
        return self._packed((name,), [rows], heads * step)

    def _check_forms(self, names: Sequence[str]) -> None:
        first = names[0]
        for name in names:
            if self.form(name) != self.form(first):
                raise UnsupportedModel(
                    f"{first} runs as {self.form(first)} and {name} as {self.form(name)}; the native executor needs "
                    "the experts of a layer to be alike, gate and up too: take --executor torch"
                )

    def _packed(
        self, names: tuple[str, ...], rows: Sequence[npt.NDArray[np.int64]], height: int
    ) -> _native.PackedMatrix:
        if names not in self._matrices:
            matrix = self._empty(names, height)
            for name, dest_rows in zip(names, rows, strict=True):
                self._pack(matrix, name, dest_rows.astype(np.int32))
            self._matrices[names] = matrix
            self.num_bytes += matrix.num_bytes
        return self._matrices[names]

    def _empty(self, names: tuple[str, ...], height: int) -> _native.PackedMatrix:
        form = self.form(names[0])
        try:
            return _native.PackedMatrix(
                form.form,
                group=form.group,
                has_min=form.has_min,
                wide_scales=form.wide_scales,
                num_rows=height,
                num_cols=self._shapes[names[0]][-1],
            )
        except MemoryError as error:
            raise OutOfMemory(f"the weights {', '.join(names)} as {form.form}: {error}") from error

    def _pack(self, matrix: _native.PackedMatrix, name: str, dest_rows: Int32) -> None:
        raw = self._raw(name)
        self._check(name, raw.shape)
        order = dest_rows if raw.row_order is None else dest_rows[raw.row_order]
        row_bytes = raw.data.size // len(order)  # of the matrix: a tensor may have several
        step = max(1, _PART_BYTES // row_bytes)
        for begin in range(0, len(order), step):
            end = min(begin + step, len(order))
            data = raw.data[begin * row_bytes : end * row_bytes]
            try:
                matrix.pack(raw.type, data, np.ascontiguousarray(order[begin:end]), self._workers)
            except ValueError as error:
                raise InvalidConfig(f"tensor {name!r}: {error}", param="quantization") from error
            if len(raw.shape) == 2:
                self._release(name, (begin, end))
        if len(raw.shape) != 2:
            self._release(name, None)

    def _raw(self, name: str) -> RawTensor:
        # Weights that are no file's, as tests have them, are only read.
        raw = getattr(self._weights, "raw", None)
        return raw_of_floats(self._weights.read(name)) if raw is None else raw(name)

    def _release(self, name: str, rows: tuple[int, int] | None) -> None:
        release = getattr(self._weights, "release", None)
        if release is not None:
            release(name, rows)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if shape != self._shapes[name]:
            raise TensorMismatch(
                f"tensor {name!r} is {list(shape)} in the checkpoint, must be {list(self._shapes[name])}"
            )


def aligned_rows(height: int) -> int:
    """The next multiple of a panel's rows."""
    return -(-height // LANES) * LANES


def interleaved_rows(height: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the rows of a gate's and of an up matrix go: 16 of one, 16 of the other."""
    rows = np.arange(height)
    gate = rows // LANES * 2 * LANES + rows % LANES
    return gate, gate + LANES
