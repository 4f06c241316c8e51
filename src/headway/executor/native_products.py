"""Products and attention, lowered: each is a stage, whose threads share its output tiles."""

from typing import Any, cast

import numpy as np

from headway import _native
from headway.executor.base import Float32
from headway.executor.fuse import AddLinear, GatedLinear, JoinedLinear
from headway.executor.native_layout import Prepared, View
from headway.executor.native_row_ops import GATES
from headway.executor.native_weights import interleaved_rows
from headway.executor.native_writer import PlanWriter, refuse
from headway.model.ops import Attention, Linear
from headway.planner.limits import head_parts
from headway.planner.native_arena import LANES

_Part = tuple[_native.PackedMatrix, View, Float32 | None]
"""A matrix, where its product goes, and its bias."""


def lower_linear(op: Linear, writer: PlanWriter) -> None:
    """A value of its own; that of the head lies dense, as samplers read it."""
    ready = writer.prepare(op.input)
    width, is_dense = writer.loader.shape(op.weight)[0], op.out == writer.logits_source
    out = writer.values[op.out] = writer.layout.new(width, is_selected=ready.is_selected, is_dense=is_dense)
    _product(writer, ready, [(writer.loader.joined((op.weight,)), out, _bias(writer, op.bias))])


def lower_joined_linear(op: JoinedLinear, writer: PlanWriter) -> None:
    """Neighbouring columns of one buffer; one matrix for each run of weights of one form."""
    ready = writer.prepare(op.input)
    widths = [writer.loader.shape(name)[0] for name in op.weights]
    joint = writer.layout.new(sum(widths), is_selected=ready.is_selected)
    columns = np.cumsum([0, *widths]).tolist()
    for out, column, width in zip(op.outs, columns, widths, strict=False):
        writer.values[out] = View(joint.buffer, column, width, joint.is_selected)
    parts: list[_Part] = []
    for first, last in _runs(op, writer):
        names, biases = op.weights[first:last], op.biases[first:last]
        bias = np.concatenate([writer.loader.vector(name) for name in biases]) if biases else None
        view = View(joint.buffer, columns[first], columns[last] - columns[first], joint.is_selected)
        parts.append((writer.loader.joined(names), view, bias))
    _product(writer, ready, parts)


def _runs(op: JoinedLinear, writer: PlanWriter) -> list[tuple[int, int]]:
    """The weights by runs of one form, [first, last)."""
    forms = [writer.loader.form(name) for name in op.weights]
    cuts = [at for at in range(len(forms)) if at == 0 or forms[at] != forms[at - 1]]
    return list(zip(cuts, [*cuts[1:], len(forms)], strict=True))


def lower_add_linear(op: AddLinear, writer: PlanWriter) -> None:
    """Onto the residual, in its place where that is not read again."""
    ready, base = writer.prepare(op.input), writer.values[op.base]
    out = writer.over_or_new(op.out, op.base)
    part = writer.loader.joined((op.weight,)), out, _bias(writer, op.bias)
    _product(writer, ready, [part], base=base, scale=op.scale)


def lower_gated_linear(op: GatedLinear, writer: PlanWriter) -> None:
    """Two matrices laid out as one, whose product ends with the gate."""
    ready = writer.prepare(op.input)
    height = writer.loader.shape(op.gate)[0]
    out = writer.values[op.out] = writer.layout.new(height, is_selected=ready.is_selected)
    bias = None
    if op.gate_bias is not None and op.up_bias is not None:
        bias = np.zeros(2 * -(-height // LANES) * LANES, np.float32)
        for rows, name in zip(interleaved_rows(height), (op.gate_bias, op.up_bias), strict=True):
            bias[rows] = writer.loader.vector(name)
    _product(writer, ready, [(writer.loader.gated(op.gate, op.up), out, bias)], gate=GATES[op.kind])


def _bias(writer: PlanWriter, name: str | None) -> Float32 | None:
    return None if name is None else writer.loader.vector(name)


def _product(
    writer: PlanWriter,
    source: Prepared,
    parts: list[_Part],
    *,
    base: View | None = None,
    scale: float = 1.0,
    gate: int = 0,
) -> None:
    """One stage of products of one input."""
    layout = writer.layout

    def emit(plan: _native.Plan) -> None:
        plan.product_stage(is_selected=source.is_selected, input=layout.place_prepared(source))
        for matrix, out, bias in parts:
            plan.product(matrix, out=layout.place(out), bias=bias, base=layout.place(base), scale=scale, gate=gate)

    used = [out for _, out, _ in parts] + ([] if base is None else [base])
    writer.own_stage(emit, source, *used)


def lower_attention(op: Attention, writer: PlanWriter) -> None:
    """K and V into the cache, row by row; then a stage of attention. Without a cache K and V of the step lie there for
    as long as the layer takes."""
    if op.causal == (op.cache_id is None):
        raise refuse(op, " that is not causal with a cache, or causal without one")
    q, k = writer.values[op.q], writer.values[op.k]
    v = None if op.v is None else writer.values[op.v]
    out, layout = writer.new(op.out, op.num_heads * op.v_dim, like=op.q), writer.layout
    caches: list[_native.KVCacheView] = []

    def emit_write(plan: _native.Plan) -> None:
        caches.append(_cache(plan, op, writer))
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
            causal=op.causal,
            head_parts=head_parts(op.num_heads, op.num_kv_heads),
        )

    written = (k,) if v is None else (k, v)
    writer.row_op(emit_write, *written, is_selected=False, cut="blocks")
    writer.own_stage(emit, q, out)


def _cache(plan: _native.Plan, op: Attention, writer: PlanWriter) -> _native.KVCacheView:
    keys, values = writer.kv.buffers(op.cache_id or 0)
    k = np.frombuffer(cast(Any, keys), np.uint8)
    v = None if op.v is None else np.frombuffer(cast(Any, values), np.uint8)
    return plan.cache(
        dtype=writer.kv.dtype,
        num_kv_heads=op.num_kv_heads,
        qk_dim=op.qk_dim,
        v_dim=op.v_dim,
        k=k,
        v=v,
    )
