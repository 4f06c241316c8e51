"""Columns joined, and products of each head with a matrix of its own (latent attention), lowered."""

from headway import _native
from headway.executor.native_layout import Prepared, View
from headway.executor.native_weights import aligned_rows
from headway.executor.native_writer import PlanWriter
from headway.model.ops import HeadLinear, Join


def lower_join(op: Join, writer: PlanWriter) -> None:
    """Each part is copied behind the one before."""
    parts = [writer.values[name] for name in op.parts]
    out = writer.new(op.out, sum(part.width for part in parts), like=op.parts[0])
    column = 0
    for part in parts:
        target = View(out.buffer, column, part.width, out.is_selected)
        _copy_heads(writer, part, target, num_heads=1, width=part.width, in_step=0, out_step=0)
        column += part.width


def lower_head_linear(op: HeadLinear, writer: PlanWriter) -> None:
    """One stage of products, of each head's columns made ready for themselves; what is kept is copied."""
    source, layout = writer.values[op.input], writer.layout
    heads, out_width, width = writer.loader.shape(op.weight)
    in_step, out_step = width + op.kept, out_width + op.kept
    matrix = writer.loader.by_head(op.weight)
    is_wide = writer.loader.form(op.weight).form == "bf16"
    out = writer.new(op.out, heads * out_step, like=op.input)
    ready = [
        _prepare_head(writer, View(source.buffer, source.column + head * in_step, width, source.is_selected), is_wide)
        for head in range(heads)
    ]
    if op.kept:
        kept = View(source.buffer, source.column + width, source.width - width, source.is_selected)
        target = View(out.buffer, out_width, out.width - out_width, out.is_selected)
        _copy_heads(writer, kept, target, num_heads=heads, width=op.kept, in_step=in_step, out_step=out_step)

    def emit(plan: _native.Plan) -> None:
        plan.product_stage(is_selected=source.is_selected, input=layout.place_prepared(ready[0]))
        for head, prepared in enumerate(ready):
            plan.product(
                matrix,
                out=layout.place(View(out.buffer, head * out_step, out_width, out.is_selected)),
                bias=None,
                base=layout.place(None),
                scale=1.0,
                gate=0,
                input=layout.place_prepared(prepared),
                rows=(head * aligned_rows(out_width), out_width),
            )

    writer.own_stage(emit, out, *ready)


def _prepare_head(writer: PlanWriter, source: View, is_wide: bool) -> Prepared:
    layout = writer.layout
    made = layout.new_prepared(source.width, is_selected=source.is_selected, has_q=not is_wide, has_wide=is_wide)

    def emit(plan: _native.Plan) -> None:
        plan.prepare(is_selected=source.is_selected, input=layout.place(source), out=layout.place_prepared(made))

    writer.row_op(emit, source, made, is_selected=source.is_selected, cut="tiles")
    return made


def _copy_heads(
    writer: PlanWriter, source: View, out: View, *, num_heads: int, width: int, in_step: int, out_step: int
) -> None:
    layout = writer.layout

    def emit(plan: _native.Plan) -> None:
        plan.copy_heads(
            input=layout.place(source),
            out=layout.place(out),
            num_heads=num_heads,
            width=width,
            in_step=in_step,
            out_step=out_step,
        )

    writer.row_op(emit, source, out, is_selected=out.is_selected)
