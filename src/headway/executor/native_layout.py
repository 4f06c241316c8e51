"""Where the values of a native plan lie: views into buffers, and buffers in one arena, shared by lifetime. Pure.

A stage is a moment: what two stages use may share memory, what one stage uses may not, since its threads are at
different ops of it at one time.
"""

from dataclasses import dataclass, field, replace

from headway.planner.native_arena import GROUP_COLS, LANES, aligned, place_buffers

PlaceTuple = tuple[int, int, int]
PreparedTuple = tuple[int, int, int, int, int]
NO_PLACE: PlaceTuple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class View:
    """Columns of a buffer: a value."""

    buffer: int
    column: int
    width: int
    is_selected: bool
    """Its rows are those whose logits are wanted, else all tokens."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows made ready for products, in a buffer of their own."""

    buffer: int
    width: int
    is_selected: bool
    has_q: bool
    """Quantised, for matrices of 8 and 4 bits."""
    has_wide: bool
    """For bf16 matrices."""
    places: int = 1
    """Rows made ready for each row: of a token, one for each of its experts."""


@dataclass(slots=True)
class _Buffer:
    num_bytes: int
    ld: int  # floats
    first: int = -1  # stage
    last: int = -1
    offset: int = -1


@dataclass(slots=True)
class Layout:
    """Buffers of a plan being written.

    Args:
        max_tokens, max_selected: rows that a step may have.
        wide_bytes: of an element of rows made ready for bf16 matrices.
    """

    max_tokens: int
    max_selected: int
    wide_bytes: int
    _buffers: list[_Buffer] = field(default_factory=list)

    def new(self, width: int, *, is_selected: bool, is_dense: bool = False, places: int = 1) -> View:
        """A value in a buffer of its own; `is_dense`: its rows lie end to end; `places`: rows of it for each row."""
        ld = width if is_dense else -(-width // LANES) * LANES
        self._buffers.append(_Buffer(aligned(places * self._rows(is_selected) * ld * 4), ld))
        return View(len(self._buffers) - 1, 0, width, is_selected)

    def new_prepared(self, width: int, *, is_selected: bool, has_q: bool, has_wide: bool, places: int = 1) -> Prepared:
        """Room for rows of `width` made ready; `places`: so many for each row."""
        made = Prepared(-1, width, is_selected, has_q, has_wide, places)
        self._buffers.append(_Buffer(sum(self._part_bytes(made)), 0))
        return replace(made, buffer=len(self._buffers) - 1)

    def use(self, stage: int, *values: View | Prepared) -> None:
        """A stage reads or writes the values."""
        for value in values:
            buffer = self._buffers[value.buffer]
            buffer.first = stage if buffer.first < 0 else min(buffer.first, stage)
            buffer.last = max(buffer.last, stage)

    def place_all(self) -> int:
        """Gives each buffer its offset; the bytes of the arena."""
        lifetimes = [(buffer.first, buffer.last) for buffer in self._buffers]
        offsets, total = place_buffers([buffer.num_bytes for buffer in self._buffers], lifetimes)
        for buffer, offset in zip(self._buffers, offsets, strict=True):
            buffer.offset = offset
        return total

    def place(self, view: View | None) -> PlaceTuple:
        """(offset, ld, width) in floats, once all are placed."""
        if view is None:
            return NO_PLACE
        buffer = self._buffers[view.buffer]
        return buffer.offset // 4 + view.column, buffer.ld, view.width

    def place_prepared(self, prepared: Prepared) -> PreparedTuple:
        """(q, scales, sums, wide, width) in bytes, -1: none."""
        starts, at = [], self._buffers[prepared.buffer].offset
        for num_bytes in self._part_bytes(prepared):
            starts.append(at if num_bytes else -1)
            at += num_bytes
        q, scales, sums, wide = starts
        return q, scales, sums, wide, prepared.width

    def _rows(self, is_selected: bool) -> int:
        return self.max_selected if is_selected else self.max_tokens

    def _part_bytes(self, prepared: Prepared) -> tuple[int, int, int, int]:
        """Of q, scales, sums and the wide rows."""
        rows = prepared.places * self._rows(prepared.is_selected)
        groups = -(-prepared.width // GROUP_COLS)
        quantised = rows * groups if prepared.has_q else 0
        wide = rows * groups * GROUP_COLS * self.wide_bytes if prepared.has_wide else 0
        return aligned(quantised * GROUP_COLS), aligned(quantised * 4), aligned(quantised * 8), aligned(wide)
