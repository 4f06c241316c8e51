"""The arena that the native executor's values lie in, as large as its plan will make it, before any weight is read.

It goes through a Program as executor/native_plan.py does with all its fusions: stages between which threads meet, and
buffers shared by lifetime. What two stages use may share memory, what one stage uses may not. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.model.ops import (
    Activation,
    Add,
    Attention,
    Embed,
    Experts,
    HeadLinear,
    Join,
    Linear,
    Logits,
    Mul,
    Norm,
    Op,
    Pool,
    Rope,
    Route,
    Scale,
    SelectRows,
)
from headway.model.program import Program
from headway.planner.run_form import FLOAT_FORMS, RunForm

ALIGNMENT = 64
"""Bytes."""
LANES = 16
"""Rows of a buffer begin at multiples of so many floats: products write whole lanes."""
GROUP_COLS = 32
_QUANTISED_BYTES = 1 + 4 / GROUP_COLS + 8 / GROUP_COLS
"""Of a column made ready for matrices of 8 and 4 bits: an int8, and a scale and two sums for each group."""
_WIDE_BYTES = 4
"""... for bf16 matrices, where the machine does not multiply bfloat16."""

Kind = Literal["rows", "product", "attention", "heads", "experts", "alone"]
Cut = Literal["anywhere", "tiles", "blocks"]


def aligned(num_bytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def place_buffers(sizes: Sequence[int], lifetimes: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets of buffers whose lifetimes (first and last stage) may share memory otherwise, and the bytes of all.

    In order of their first stage each takes the lowest gap that is large enough.
    """
    offsets = [0] * len(sizes)
    live: list[tuple[int, int, int]] = []  # offset, end, last stage; by offset
    total = 0
    for at in sorted(range(len(sizes)), key=lambda index: lifetimes[index]):
        first, last = lifetimes[at]
        live = [item for item in live if item[2] >= first]
        start = 0
        for offset, end, _ in live:
            if offset - start >= sizes[at]:
                break
            start = max(start, end)
        offsets[at] = start
        total = max(total, start + sizes[at])
        live = sorted([*live, (start, start + sizes[at], last)])
    return offsets, total


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOp:
    """An op of the plan, as far as memory goes."""

    kind: Kind
    outs: tuple[str, ...]
    """Neighbouring columns of one buffer."""
    inputs: tuple[str, ...]
    """Values that are read as they are."""
    source: str | None = None
    """The value that is made ready and multiplied."""
    own_bytes: tuple[int, ...] = ()
    """Of a row, buffers that only this op uses."""
    num_own: int = 1
    """Each of these is so many, that begin aligned."""
    overwrites: bool = False
    """What it makes takes the place of its first input, where nothing reads that after it."""


def arena_bytes(program: Program, forms: Mapping[str, RunForm], *, max_tokens: int, max_selected: int) -> int:
    """Bytes of all buffers.

    Args:
        forms: of each matrix.
        max_tokens, max_selected: rows that a step may have, and those of them whose logits are wanted.
    """
    arena = _Arena(program, forms, max_tokens, max_selected)
    ops = fused_ops(program, forms)
    last_use = {name: at for at, op in enumerate(ops) for name in (*op.inputs, op.source)}
    for at, op in enumerate(ops):
        arena.add(op, may_overwrite=op.overwrites and last_use[op.inputs[0]] == at)
    return arena.num_bytes(program.ops[-1].out)


@dataclass(slots=True)
class _Buffer:
    num_bytes: int
    first: int
    last: int


@dataclass(slots=True)
class _Arena:
    program: Program
    forms: Mapping[str, RunForm]
    max_tokens: int
    max_selected: int
    stage: int = -1
    is_rows: bool = False
    """The stage takes more ops that work row by row."""
    is_selected: bool = False
    cut: Cut = "anywhere"
    buffers: dict[str, _Buffer] = field(default_factory=dict)
    """By the first value in them; those of what is made ready by ready:value."""
    place: dict[str, str] = field(default_factory=dict)
    """Of each value, its buffer."""
    widths: Mapping[str, int] = field(init=False)
    selected: Mapping[str, int] = field(init=False)
    readers: Mapping[str, set[bool]] = field(init=False)
    last_hidden: str | None = None

    def __post_init__(self) -> None:
        self.selected = self.program.widths(is_selected=True)
        self.widths = self.program.widths() | self.selected
        readers: dict[str, set[bool]] = {}
        for op in self.program.ops:
            if isinstance(op, Linear):
                readers.setdefault(op.input, set()).add(self.forms[op.weight].form in FLOAT_FORMS)
        self.readers = readers

    def add(self, op: FusedOp, *, may_overwrite: bool) -> None:
        """Writes one op."""
        if op.source is not None:
            self._prepare(op.source)
        if may_overwrite:
            self.place |= dict.fromkeys(op.outs, self.place[op.inputs[0]])
        else:
            width = sum(self.widths[name] for name in op.outs)
            ld = -(-width // LANES) * LANES
            self.buffers[op.outs[0]] = _Buffer(aligned(self._num_rows(op.outs[0]) * ld * 4), -1, -1)
            self.place |= dict.fromkeys(op.outs, op.outs[0])
        used = [self.place[name] for name in (*op.inputs, *op.outs)]
        if op.kind == "attention":  # k and v go into the cache, then it is a stage of its own
            self._rows(used[1:-1], is_selected=False, cut="blocks")
        own = [f"{at}:{op.outs[0]}" for at in range(len(op.own_bytes))]
        for name, row_bytes in zip(own, op.own_bytes, strict=True):
            parts = 4 * ALIGNMENT * op.num_own
            self.buffers[name] = _Buffer(aligned(self._num_rows(op.outs[0]) * row_bytes) + parts, -1, -1)
        if op.kind == "heads":  # each head is made ready, and what is kept is copied
            self._rows([*used[:-1], *own], is_selected=op.outs[0] in self.selected, cut="tiles")
            self._rows(used, is_selected=op.outs[0] in self.selected, cut="anywhere")
            used = [used[-1], *own]
        if op.kind == "rows":
            self._rows(used, is_selected=op.outs[0] in self.selected, cut="anywhere")
        elif op.kind == "experts":
            self._experts(used, own)
        else:
            self.stage, self.is_rows = self.stage + 1, False
            self._use(used if op.source is None else [*used, f"ready:{op.source}"])

    def _experts(self, used: Sequence[str], own: Sequence[str]) -> None:
        """Four stages: gathered and made ready, gate and up, made ready again, down and the sum."""
        (source, routing, out), (ready, hidden, hidden_ready) = used, own
        for of_stage in (
            (source, routing, ready),
            (ready, hidden),
            (hidden, hidden_ready),
            (hidden_ready, routing, out),
        ):
            self.stage, self.is_rows = self.stage + 1, False
            self._use(of_stage)

    def num_bytes(self, result: str) -> int:
        """All of it, once every op is written; the result and the last hidden states stay to the end."""
        self.stage += 1
        self._use([self.place[name] for name in (result, self._last_hidden()) if name in self.place])
        buffers = list(self.buffers.values())
        sizes = [buffer.num_bytes for buffer in buffers]
        return place_buffers(sizes, [(buffer.first, buffer.last) for buffer in buffers])[1]

    def _last_hidden(self) -> str:
        selections = [op.input for op in self.program.ops if isinstance(op, SelectRows | Pool)]
        return selections[-1] if selections else self.program.ops[-1].out

    def _num_rows(self, name: str) -> int:
        return self.max_selected if name in self.selected else self.max_tokens

    def _prepare(self, source: str) -> None:
        """Makes a value ready for products: once, in a row stage."""
        name = f"ready:{source}"
        if name in self.buffers:
            return
        num_groups, rows = -(-self.widths[source] // GROUP_COLS), self._num_rows(source)
        kinds = self.readers.get(source, {True, False})
        column_bytes = _WIDE_BYTES * (True in kinds) + _QUANTISED_BYTES * (False in kinds)
        parts = 4 * ALIGNMENT  # each of which begins aligned
        self.buffers[name] = _Buffer(aligned(int(rows * num_groups * GROUP_COLS * column_bytes) + parts), -1, -1)
        self._rows([self.place[source], name], is_selected=source in self.selected, cut="tiles")

    def _rows(self, used: Sequence[str], *, is_selected: bool, cut: Cut) -> None:
        fits = self.is_rows and self.is_selected == is_selected and {self.cut, cut} != {"tiles", "blocks"}
        if not fits:
            self.stage, self.is_rows, self.is_selected, self.cut = self.stage + 1, True, is_selected, cut
        elif cut != "anywhere":
            self.cut = cut
        self._use(used)

    def _use(self, used: Sequence[str]) -> None:
        for name in used:
            buffer = self.buffers[name]
            buffer.first = self.stage if buffer.first < 0 else buffer.first
            buffer.last = self.stage


def fused_ops(program: Program, forms: Mapping[str, RunForm]) -> list[FusedOp]:
    """The Program's ops with all fusions: what lies in no memory of its own is part of the op that ends it."""
    gates = _gates(program, forms)
    residuals = _residuals(program)
    hidden = {name for parts in (*gates.values(), *residuals.values()) for name in parts}
    sources = {op.out: op.input for op in program.ops if isinstance(op, Linear)}
    siblings: dict[tuple[str, bool], list[str]] = {}
    for op in program.ops:
        if isinstance(op, Linear) and op.out not in hidden:
            siblings.setdefault((op.input, op.bias is None), []).append(op.out)
    made: list[FusedOp] = []
    for op in program.ops:
        if op.out in hidden:
            continue
        if op.out in gates:
            source = sources[gates[op.out][0]]
            made.append(FusedOp(kind="product", outs=(op.out,), inputs=(), source=source))
        elif op.out in residuals:
            source = sources[residuals[op.out][0]]
            made.append(FusedOp(kind="product", outs=(op.out,), inputs=op.inputs[:1], source=source, overwrites=True))
        elif isinstance(op, Linear):
            outs = siblings[op.input, op.bias is None]
            if op.out == outs[0]:
                made.append(FusedOp(kind="product", outs=tuple(outs), inputs=(), source=op.input))
        else:
            made.append(
                FusedOp(
                    kind=_kind(op),
                    outs=(op.out,),
                    inputs=op.inputs,
                    own_bytes=_own_bytes(op, program, forms),
                    num_own=program.weights[op.weight][0] if isinstance(op, HeadLinear) else 1,
                    overwrites=_overwrites(op),
                )
            )
    return made


def _kind(op: Op) -> Kind:
    match op:
        case Embed() | Norm() | Activation() | Mul() | Add() | Scale() | Rope() | SelectRows() | Logits():
            return "rows"
        case Join() | Route():
            return "rows"
        case HeadLinear():
            return "heads"
        case Experts():
            return "experts"
        case Attention():
            return "attention"
        case _:
            return "alone"


def _overwrites(op: Op) -> bool:
    if isinstance(op, Norm):
        return op.over == "head"
    return isinstance(op, Activation | Add | Logits | Mul | Rope | Route | Scale)


def _own_bytes(op: Op, program: Program, forms: Mapping[str, RunForm]) -> tuple[int, ...]:
    """Of a row: what is made ready for the op's own products, and what lies between two of them."""
    if isinstance(op, HeadLinear):
        heads, _, width = program.weights[op.weight]
        return (heads * _ready_bytes(width, forms[op.weight]),)
    if isinstance(op, Experts):
        width, in_width = program.weights[op.gates[0]]
        hidden = -(-width // LANES) * LANES * 4
        rows = _ready_bytes(in_width, forms[op.gates[0]]), hidden, _ready_bytes(width, forms[op.downs[0]])
        return tuple(op.top_k * row_bytes for row_bytes in rows)
    return ()


def _ready_bytes(width: int, form: RunForm) -> int:
    column_bytes = _WIDE_BYTES if form.form == "bf16" else _QUANTISED_BYTES
    return int(-(-width // GROUP_COLS) * GROUP_COLS * column_bytes)


def _residuals(program: Program) -> dict[str, list[str]]:
    """Of each sum that is the end of a product, the product, and the scale between them."""
    readers = Counter(name for op in program.ops for name in op.inputs)
    makers = {op.out: op for op in program.ops if readers[op.out] == 1}
    found: dict[str, list[str]] = {}
    for op in program.ops:
        if not isinstance(op, Add):
            continue
        update = makers.get(op.right)
        if isinstance(update, Scale):
            update = makers.get(update.input)
        if isinstance(update, Linear):
            found[op.out] = [update.out] if update.out == op.right else [update.out, op.right]
    return found


def _gates(program: Program, forms: Mapping[str, RunForm]) -> dict[str, list[str]]:
    """Of each gated product, the gate, its activation and what it is multiplied by, where one product makes all."""
    makers = {op.out: op for op in program.ops}
    readers = Counter(name for op in program.ops for name in op.inputs)
    found: dict[str, list[str]] = {}
    for op in program.ops:
        if not isinstance(op, Mul):
            continue
        activation, up = makers[op.left], makers[op.right]
        gate = makers[activation.input] if isinstance(activation, Activation) else None
        if not isinstance(up, Linear) or not isinstance(gate, Linear) or gate.input != up.input:
            continue
        if forms[gate.weight] == forms[up.weight] and readers[op.left] == readers[gate.out] == readers[up.out] == 1:
            found[op.out] = [gate.out, op.left, up.out]
    return found
