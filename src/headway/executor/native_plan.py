"""Compiles a Program into a native plan: fused, laid out in one arena, cut into stages between which threads meet.

The fusions, each of which can be left out (an ablation; logits stay close, and exact whatever the batch):

    linears, ropes, gates, residuals   fuse.py's
    gated_products                     gate and up in one product, which ends with the gate
    row_stages                         ops that work row by row share a stage: a block of rows goes through all of them
    in_place                           a value that is not read again is overwritten
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np

from headway import _native
from headway.errors import UnsupportedModel
from headway.executor.base import Float32, KVBuffers
from headway.executor.fuse import (
    AddLinear,
    Fusion,
    Gate,
    GatedLinear,
    JoinedLinear,
    JoinedRope,
    PlanOp,
    fuse,
    join_gates,
    outs_of,
)
from headway.executor.native_layout import Layout, Prepared, View
from headway.executor.native_rope import RopeTables
from headway.executor.native_weights import MatrixLoader, interleaved_rows
from headway.model.ops import (
    Activation,
    ActivationKind,
    Add,
    Attention,
    Embed,
    Linear,
    Logits,
    Mul,
    Norm,
    Rope,
    Scale,
    SelectRows,
)
from headway.model.program import Program

NativeFusion = Fusion | Literal["gated_products", "row_stages", "in_place"]
ALL_NATIVE_FUSIONS: tuple[NativeFusion, ...] = (*get_args(Fusion), "gated_products", "row_stages", "in_place")

_GATES: dict[ActivationKind, int] = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4}
"""matrix.h's Gate."""
_ACTIVATIONS: tuple[ActivationKind, ...] = ("silu", "relu", "gelu", "gelu_tanh", "sigmoid", "tanh")
"""exec_kernels.h's ActivationKind, by place."""
_ELEMENTS = ("activation", "gate", "multiply", "add", "scale", "soft_cap", "copy", "broadcast")
"""row_ops.h's ElementRows::What, by place."""

_Cut = Literal["anywhere", "tiles", "blocks"]
"""Where a stage's rows may be cut: prepared rows lie in tiles, and two threads never write one block of the cache."""
_Emit = Callable[[_native.Plan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """What the plan is made for; see native/src/exec/plan.h."""

    max_tokens: int
    max_selected: int
    max_seqs: int
    max_context: int


@dataclass(slots=True)
class _Stage:
    is_rows: bool
    is_selected: bool
    cut: _Cut
    emits: list[_Emit] = field(default_factory=list)


class PlanCompiler:
    """Writes the plan of one Program.

    Args:
        program: checked.
        loader: its weights.
        kv: its caches' memory.
        limits: of its steps.
        fusions: those that are done.

    Raises UnsupportedModel for what the native executor does not run, by name.
    """

    def __init__(
        self,
        program: Program,
        loader: MatrixLoader,
        kv: KVBuffers,
        limits: PlanLimits,
        fusions: Collection[NativeFusion] = ALL_NATIVE_FUSIONS,
    ) -> None:
        self._program, self._loader, self._kv, self._limits, self._fusions = program, loader, kv, limits, fusions
        multiplies_bf16 = _native.step_kernels()[2]
        self._layout = Layout(limits.max_tokens, limits.max_selected, 2 if multiplies_bf16 else 4)
        self._ropes = RopeTables(limits.max_context)
        self._stages: list[_Stage] = []
        self._values: dict[str, View] = {}
        self._prepared: dict[str, Prepared] = {}
        self._last_hidden: View | None = None
        fused = fuse(program.ops, [name for name in get_args(Fusion) if name in fusions])
        self._ops: tuple[PlanOp | GatedLinear, ...] = fused
        if "gated_products" in fusions:
            self._ops = join_gates(fused, tuple(_GATES), self._is_alike)
        self._last_use = {name: at for at, op in enumerate(self._ops) for name in op.inputs}
        self._forms = self._forms_by_input()
        self._at = 0

    def compile(self, workers: _native.Workers) -> _native.Plan:
        """Loads the weights and takes the memory; blocks."""
        for self._at, op in enumerate(self._ops):
            self._lower(op)
        logits = self._values[self._program.ops[-1].out]
        last_hidden = self._last_hidden or logits
        self._layout.use(len(self._stages), logits, last_hidden)
        plan = _native.Plan(
            workers,
            max_tokens=self._limits.max_tokens,
            max_selected=self._limits.max_selected,
            max_seqs=self._limits.max_seqs,
            max_context=self._limits.max_context,
            num_embeddings=self._program.vocab_size,
            num_blocks=self._kv.num_blocks,
            block_size=self._kv.block_size,
            arena_bytes=self._layout.place_all(),
        )
        for stage in self._stages:
            if stage.is_rows:
                plan.row_stage(is_selected=stage.is_selected, cuts_at_blocks=stage.cut == "blocks")
            for emit in stage.emits:
                emit(plan)
        plan.finish(last_hidden=self._layout.place(last_hidden), logits=self._layout.place(logits))
        return plan

    def _lower(self, op: PlanOp | GatedLinear) -> None:
        match op:
            case Embed():
                self._embed(op)
            case Norm():
                self._norm(op)
            case Linear():
                self._linear(op.out, op.input, op.weight, op.bias)
            case JoinedLinear():
                self._joined_linear(op)
            case AddLinear():
                self._add_linear(op)
            case GatedLinear():
                self._gated_linear(op)
            case Rope():
                self._rope((op.out,), (op.input,), op)
            case JoinedRope():
                self._rope(op.outs, op.inputs, op.rope)
            case Attention():
                self._attention(op)
            case SelectRows():
                self._select(op)
            case _:
                self._elementwise(op)

    # What is known of a value

    def _may_overwrite(self, name: str) -> bool:
        """Nothing reads this input of the current op after it."""
        return self._last_use[name] == self._at and "in_place" in self._fusions

    def _new(self, name: str, width: int, *, like: str | None = None) -> View:
        is_selected = self._values[like].is_selected if like is not None else False
        self._values[name] = self._layout.new(width, is_selected=is_selected)
        return self._values[name]

    def _forms_by_input(self) -> dict[str, set[bool]]:
        """Which kinds of matrices read each value: True for bf16."""
        forms: dict[str, set[bool]] = {}
        for op in self._ops:
            names: tuple[str, ...]
            match op:
                case Linear() | AddLinear():
                    names = (op.weight,)
                case JoinedLinear():
                    names = op.weights
                case GatedLinear():
                    names = (op.gate, op.up)
                case _:
                    continue
            forms.setdefault(op.input, set()).update(self._loader.form(name).form == "bf16" for name in names)
        return forms

    def _is_alike(self, left: str, right: str) -> bool:
        return self._loader.form(left) == self._loader.form(right) and self._loader.shape(left) == self._loader.shape(
            right
        )

    # Stages

    def _row_op(self, emit: _Emit, *used: View | Prepared, is_selected: bool, cut: _Cut = "anywhere") -> None:
        """Adds an op that works row by row, to the last stage if that can take it."""
        stage = self._stages[-1] if self._stages else None
        if (
            stage is None
            or not stage.is_rows
            or "row_stages" not in self._fusions
            or stage.is_selected != is_selected
            or {stage.cut, cut} == {"tiles", "blocks"}
        ):
            stage = _Stage(is_rows=True, is_selected=is_selected, cut=cut)
            self._stages.append(stage)
        if cut != "anywhere":
            stage.cut = cut
        stage.emits.append(emit)
        self._layout.use(len(self._stages) - 1, *used)

    def _own_stage(self, emit: _Emit, *used: View | Prepared) -> None:
        self._stages.append(_Stage(is_rows=False, is_selected=False, cut="anywhere", emits=[emit]))
        self._layout.use(len(self._stages) - 1, *used)

    # Ops that work row by row

    def _embed(self, op: Embed) -> None:
        if op.index == "token_type":
            raise UnsupportedModel("token types are not supported by the native executor")
        by_position, layout = op.index == "position", self._layout
        needed = self._limits.max_context + op.offset if by_position else self._program.vocab_size + op.offset
        if self._loader.shape(op.table)[0] < needed:
            raise UnsupportedModel(
                f"{op.table} has {self._loader.shape(op.table)[0]} rows, the plan needs {needed}: lower --max-model-len"
            )
        table, out = self._loader.joined((op.table,)), self._new(op.out, self._loader.shape(op.table)[1])

        def emit(plan: _native.Plan) -> None:
            plan.embed(table, by_position=by_position, offset=op.offset, scale=op.scale, out=layout.place(out))

        self._row_op(emit, out, is_selected=False)

    def _norm(self, op: Norm) -> None:
        source, layout = self._values[op.input], self._layout
        weight = self._loader.vector(op.weight)
        bias = None if op.bias is None else self._loader.vector(op.bias)
        if op.over == "head" and self._may_overwrite(op.input):
            out = self._values[op.out] = source
        else:
            out = self._new(op.out, source.width, like=op.input)

        def emit(plan: _native.Plan) -> None:
            plan.norm(
                is_layer=op.kind == "layer",
                input=layout.place(source),
                out=layout.place(out),
                head=len(weight),
                weight=weight,
                bias=bias,
                eps=op.eps,
                one_plus=op.one_plus,
            )

        self._row_op(emit, source, out, is_selected=source.is_selected)

    def _rope(self, outs: tuple[str, ...], inputs: tuple[str, ...], rope: Rope) -> None:
        if not all(self._may_overwrite(name) for name in inputs):
            for out, name in zip(outs, inputs, strict=True):
                self._element("copy", self._values[name], None, self._new(out, self._values[name].width, like=name))
            parts = [self._values[out] for out in outs]
        else:
            # Neighbouring columns of one matrix turn as one.
            first = self._values[inputs[0]]
            width = sum(self._values[name].width for name in inputs)
            parts = [View(first.buffer, first.column, width, first.is_selected)]
            self._values.update({out: self._values[name] for out, name in zip(outs, inputs, strict=True)})
        cosines, sines = self._ropes.table(rope)
        for part in parts:
            self._turn(part, rope, cosines, sines)

    def _turn(self, value: View, rope: Rope, cosines: Float32, sines: Float32) -> None:
        layout = self._layout

        def emit(plan: _native.Plan) -> None:
            plan.rope(
                value=layout.place(value),
                head_dim=rope.head_dim,
                cosines=cosines,
                sines=sines,
                interleaved=rope.layout == "interleaved",
            )

        self._row_op(emit, value, is_selected=value.is_selected)

    def _select(self, op: SelectRows) -> None:
        source, layout = self._values[op.input], self._layout
        out = self._values[op.out] = layout.new(source.width, is_selected=True)
        self._last_hidden = source
        self._row_op(
            lambda plan: plan.select(input=layout.place(source), out=layout.place(out)), source, out, is_selected=True
        )

    def _elementwise(self, op: Any) -> None:
        left = self._values[op.inputs[0]]
        right = self._values[op.inputs[1]] if len(op.inputs) > 1 else None
        if isinstance(op, Logits) and op.scale == 1.0 and op.soft_cap is None:
            self._values[op.out] = left
            return
        if self._may_overwrite(op.inputs[0]):
            out = self._values[op.out] = left
        else:
            out = self._new(op.out, left.width, like=op.inputs[0])
        match op:
            case Activation():
                self._element("activation", left, None, out, activation=_ACTIVATIONS.index(op.kind))
            case Gate() if op.kind in _GATES:
                self._element("gate", left, right, out, gate=_GATES[op.kind])
            case Gate():
                self._element("activation", left, None, out, activation=_ACTIVATIONS.index(op.kind))
                self._element("multiply", out, right, out)
            case Mul():
                is_broadcast = right is not None and right.width == 1 and left.width > 1
                self._element("broadcast" if is_broadcast else "multiply", left, right, out)
            case Add():
                self._element("add", left, right, out)
            case Scale():
                self._element("scale", left, None, out, factor=op.factor)
            case Logits():
                self._element("soft_cap", left, None, out, factor=op.scale, cap=op.soft_cap or 0.0)
            case _:
                raise UnsupportedModel(f"{type(op).__name__} is not supported by the native executor")

    def _element(
        self,
        what: str,
        left: View,
        right: View | None,
        out: View,
        *,
        activation: int = 0,
        gate: int = 0,
        factor: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        layout = self._layout

        def emit(plan: _native.Plan) -> None:
            plan.element(
                what=_ELEMENTS.index(what),
                activation=activation,
                gate=gate,
                factor=factor,
                cap=cap,
                left=layout.place(left),
                right=layout.place(right),
                out=layout.place(out),
            )

        used = [value for value in (left, right, out) if value is not None]
        self._row_op(emit, *used, is_selected=out.is_selected)

    # Products

    def _prepare(self, name: str) -> Prepared:
        """The value, ready for the products that read it; once, however many do."""
        if name not in self._prepared:
            source, layout, forms = self._values[name], self._layout, self._forms[name]
            made = layout.new_prepared(
                source.width, is_selected=source.is_selected, has_q=False in forms, has_wide=True in forms
            )
            self._prepared[name] = made
            self._row_op(
                lambda plan: plan.prepare(
                    is_selected=source.is_selected, input=layout.place(source), out=layout.place_prepared(made)
                ),
                source,
                made,
                is_selected=source.is_selected,
                cut="tiles",
            )
        return self._prepared[name]

    def _product(
        self,
        source: Prepared,
        parts: list[tuple[_native.PackedMatrix, View, Float32 | None]],
        *,
        base: View | None = None,
        scale: float = 1.0,
        gate: int = 0,
    ) -> None:
        """One stage of products of one input."""
        layout = self._layout

        def emit(plan: _native.Plan) -> None:
            plan.product_stage(is_selected=source.is_selected, input=layout.place_prepared(source))
            for matrix, out, bias in parts:
                plan.product(
                    matrix, out=layout.place(out), bias=bias, base=layout.place(base), scale=scale, gate=gate
                )

        used = [out for _, out, _ in parts] + ([] if base is None else [base])
        self._own_stage(emit, source, *used)

    def _bias(self, name: str | None) -> Float32 | None:
        return None if name is None else self._loader.vector(name)

    def _linear(self, out: str, source: str, weight: str, bias: str | None) -> None:
        ready = self._prepare(source)
        width = self._loader.shape(weight)[0]
        is_logits = out == self._program.ops[-1].inputs[0]
        view = self._values[out] = self._layout.new(width, is_selected=ready.is_selected, is_dense=is_logits)
        self._product(ready, [(self._loader.joined((weight,)), view, self._bias(bias))])

    def _joined_linear(self, op: JoinedLinear) -> None:
        """One value of neighbouring columns; one matrix for each run of weights of one form."""
        ready = self._prepare(op.input)
        widths = [self._loader.shape(name)[0] for name in op.weights]
        joint = self._layout.new(sum(widths), is_selected=ready.is_selected)
        column = 0
        parts = []
        for names, biases in self._runs(op):
            width = sum(self._loader.shape(name)[0] for name in names)
            bias = np.concatenate([self._loader.vector(name) for name in biases]) if biases else None
            part = View(joint.buffer, column, width, joint.is_selected)
            parts.append((self._loader.joined(names), part, bias))
            column += width
        column = 0
        for out, width in zip(op.outs, widths, strict=True):
            self._values[out] = View(joint.buffer, column, width, joint.is_selected)
            column += width
        self._product(ready, parts)

    def _runs(self, op: JoinedLinear) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The weights of a joint linear, and their biases, by runs of one form."""
        runs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for at, name in enumerate(op.weights):
            bias = op.biases[at : at + 1]
            if runs and self._loader.form(runs[-1][0][0]) == self._loader.form(name):
                runs[-1] = (*runs[-1][0], name), (*runs[-1][1], *bias)
            else:
                runs.append(((name,), bias))
        return runs

    def _add_linear(self, op: AddLinear) -> None:
        ready, base = self._prepare(op.input), self._values[op.base]
        if self._may_overwrite(op.base):
            out = self._values[op.out] = base
        else:
            out = self._new(op.out, base.width, like=op.base)
        self._product(ready, [(self._loader.joined((op.weight,)), out, None)], base=base, scale=op.scale)

    def _gated_linear(self, op: GatedLinear) -> None:
        ready = self._prepare(op.input)
        height = self._loader.shape(op.gate)[0]
        out = self._values[op.out] = self._layout.new(height, is_selected=ready.is_selected)
        bias = None
        if op.gate_bias is not None and op.up_bias is not None:
            bias = np.zeros(2 * -(-height // 16) * 16, np.float32)
            for rows, name in zip(interleaved_rows(height), (op.gate_bias, op.up_bias), strict=True):
                bias[rows] = self._loader.vector(name)
        self._product(ready, [(self._loader.gated(op.gate, op.up), out, bias)], gate=_GATES[op.kind])

    # Attention

    def _attention(self, op: Attention) -> None:
        if not op.causal:
            raise UnsupportedModel("attention that is not causal is not supported by the native executor")
        q, k, v = (self._values[name] for name in (op.q, op.k, op.v))
        out, layout = self._new(op.out, op.num_heads * op.v_dim, like=op.q), self._layout
        caches: list[_native.KVCacheView] = []

        def emit_write(plan: _native.Plan) -> None:
            buffers = [np.frombuffer(cast(Any, memory), np.uint8) for memory in self._kv.buffers(op.cache_id)]
            caches.append(
                plan.cache(
                    is_int8=self._kv.dtype == "int8",
                    num_kv_heads=op.num_kv_heads,
                    qk_dim=op.qk_dim,
                    v_dim=op.v_dim,
                    k=buffers[0],
                    v=buffers[1],
                )
            )
            plan.write_kv(caches[0], k=layout.place(k), v=layout.place(v))

        def emit(plan: _native.Plan) -> None:
            plan.attention(
                caches[0],
                q=layout.place(q),
                out=layout.place(out),
                num_heads=op.num_heads,
                scale=op.scale,
                soft_cap=op.soft_cap or 0.0,
                window=op.window or 0,
                causal=True,
            )

        self._row_op(emit_write, k, v, is_selected=False, cut="blocks")
        self._own_stage(emit, q, out)
