"""Ops that work row by row, lowered: embeddings, norms, rotary positions, element by element."""

from collections.abc import Mapping

from headway import _native
from headway.executor.fuse import Gate
from headway.executor.native_layout import View
from headway.executor.native_writer import PlanWriter, refuse
from headway.model.ops import (
    Activation,
    ActivationKind,
    Add,
    Embed,
    Logits,
    Mul,
    Norm,
    Pool,
    PoolKind,
    Rope,
    Scale,
    SelectRows,
)

GATES: Mapping[ActivationKind, int] = {"silu": 1, "gelu": 2, "gelu_tanh": 3, "relu": 4}
"""matrix.h's Gate."""
_ACTIVATIONS: tuple[ActivationKind, ...] = ("silu", "relu", "gelu", "gelu_tanh", "sigmoid", "tanh")
"""exec_kernels.h's ActivationKind, by place."""
_ELEMENTS = ("activation", "gate", "multiply", "add", "scale", "soft_cap", "copy", "broadcast")
"""row_ops.h's ElementRows::What, by place."""
_POOLS: tuple[PoolKind, ...] = ("cls", "mean", "max", "last")
"""pool.h's PoolKind, by place."""


def lower_embed(op: Embed, writer: PlanWriter) -> None:
    """Rows of a table, by token, position or token type."""
    if op.index == "token_type":
        _embed_types(op, writer)
        return
    by_position, layout = op.index == "position", writer.layout
    num_rows, width = writer.loader.shape(op.table)
    needed = (writer.limits.max_context if by_position else writer.vocab_size) + op.offset
    if num_rows < needed:
        raise refuse(op, f" that reads {needed} rows of {op.table}, which has {num_rows},")
    table, out = writer.loader.joined((op.table,)), writer.new(op.out, width)

    def emit(plan: _native.Plan) -> None:
        plan.embed(table, by_position=by_position, offset=op.offset, scale=op.scale, out=layout.place(out))

    writer.row_op(emit, out, is_selected=False)


def _embed_types(op: Embed, writer: PlanWriter) -> None:
    if op.offset or op.scale != 1.0:
        raise refuse(op, " of token types with an offset or a scale")
    layout = writer.layout
    table, out = writer.loader.joined((op.table,)), writer.new(op.out, writer.loader.shape(op.table)[1])
    writer.row_op(lambda plan: plan.embed_types(table, out=layout.place(out)), out, is_selected=False)


def lower_norm(op: Norm, writer: PlanWriter) -> None:
    """Over the row into a new value, since residuals read what it read; over heads in place."""
    source, layout = writer.values[op.input], writer.layout
    weight = writer.loader.vector(op.weight)
    bias = None if op.bias is None else writer.loader.vector(op.bias)
    is_own = op.over == "hidden"
    out = writer.new(op.out, source.width, like=op.input) if is_own else writer.over_or_new(op.out, op.input)

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

    writer.row_op(emit, source, out, is_selected=source.is_selected)


def lower_rope(outs: tuple[str, ...], inputs: tuple[str, ...], rope: Rope, writer: PlanWriter) -> None:
    """In place; neighbouring columns of one matrix turn as one."""
    if all(writer.may_overwrite(name) for name in inputs):
        writer.values.update({out: writer.values[name] for out, name in zip(outs, inputs, strict=True)})
        first = writer.values[inputs[0]]
        width = sum(writer.values[name].width for name in inputs)
        # The kernel turns the first columns of each head: those that turn begin each as many columns further on.
        _turn(View(first.buffer, first.column + rope.start, width, first.is_selected), rope, writer)
        return
    for out, name in zip(outs, inputs, strict=True):
        copied = writer.new(out, writer.values[name].width, like=name)
        _element(writer, "copy", writer.values[name], None, copied)
        _turn(View(copied.buffer, rope.start, copied.width, copied.is_selected), rope, writer)


def _turn(value: View, rope: Rope, writer: PlanWriter) -> None:
    layout = writer.layout
    cosines, sines = writer.ropes.table(rope)

    def emit(plan: _native.Plan) -> None:
        plan.rope(
            value=layout.place(value),
            head_dim=rope.head_dim,
            cosines=cosines,
            sines=sines,
            interleaved=rope.layout == "interleaved",
        )

    writer.row_op(emit, value, is_selected=value.is_selected)


def lower_select(op: SelectRows, writer: PlanWriter) -> None:
    """Copies the rows whose logits are wanted."""
    source, layout = writer.values[op.input], writer.layout
    out = writer.values[op.out] = layout.new(source.width, is_selected=True)
    writer.last_hidden = source

    def emit(plan: _native.Plan) -> None:
        plan.select(input=layout.place(source), out=layout.place(out))

    writer.row_op(emit, source, out, is_selected=True)


def lower_pool(op: Pool, writer: PlanWriter) -> None:
    """One row of each sequence; what is read by who runs the plan lies dense."""
    source, layout = writer.values[op.input], writer.layout
    out = layout.new(source.width, is_selected=True, is_dense=op.out == writer.logits_source)
    writer.values[op.out] = out
    writer.last_hidden = source

    def emit(plan: _native.Plan) -> None:
        plan.pool(kind=_POOLS.index(op.kind), normalise=op.normalise, input=layout.place(source), out=layout.place(out))

    writer.row_op(emit, source, out, is_selected=True)


def lower_logits(op: Logits, writer: PlanWriter) -> None:
    """Nothing at all, where there is neither a scale nor a cap. Dense, as samplers read it."""
    if op.scale == 1.0 and op.soft_cap is None:
        writer.values[op.out] = writer.values[op.input]
        return
    source, out = writer.values[op.input], writer.over_or_new(op.out, op.input, is_dense=True)
    _element(writer, "soft_cap", source, None, out, factor=op.scale, cap=op.soft_cap or 0.0)


def lower_gate(op: Gate, writer: PlanWriter) -> None:
    """In one pass, where the kernels have it."""
    left, right, out = writer.values[op.gate], writer.values[op.up], writer.over_or_new(op.out, op.gate)
    if op.kind in GATES:
        _element(writer, "gate", left, right, out, gate=GATES[op.kind])
        return
    _element(writer, "activation", left, None, out, activation=_ACTIVATIONS.index(op.kind))
    _element(writer, "multiply", out, right, out)


def lower_elementwise(op: Activation | Scale | Mul | Add, writer: PlanWriter) -> None:
    """In the place of the left one where that is not read again."""
    left = writer.values[op.inputs[0]]
    right = writer.values[op.inputs[1]] if len(op.inputs) > 1 else None
    out = writer.over_or_new(op.out, op.inputs[0])
    match op:
        case Activation():
            _element(writer, "activation", left, None, out, activation=_ACTIVATIONS.index(op.kind))
        case Scale():
            _element(writer, "scale", left, None, out, factor=op.factor)
        case Mul():
            is_broadcast = right is not None and right.width == 1 and left.width > 1
            _element(writer, "broadcast" if is_broadcast else "multiply", left, right, out)
        case Add():
            _element(writer, "add", left, right, out)


def _element(
    writer: PlanWriter,
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
    layout = writer.layout

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
    writer.row_op(emit, *used, is_selected=out.is_selected)
