"""Mixtures of experts, lowered: the choice row by row, then four stages over one schedule, which
native/src/exec/expert_stage.h describes."""

from headway import _native
from headway.executor.native_layout import Prepared
from headway.executor.native_row_ops import GATES
from headway.executor.native_weights import aligned_rows
from headway.executor.native_writer import PlanWriter, refuse
from headway.model.ops import Experts, Route

MAX_EXPERTS = 1024
"""native/src/exec/route.h."""


def lower_route(op: Route, writer: PlanWriter) -> None:
    """In the place of the scores, where nothing else reads them."""
    source, layout = writer.values[op.input], writer.layout
    if source.width > MAX_EXPERTS:
        raise refuse(op, f" of {source.width} experts (at most {MAX_EXPERTS})")
    bias = None if op.bias is None else writer.loader.vector(op.bias)
    out = writer.over_or_new(op.out, op.input)
    num_counted = min(2 if op.group_score == "two_largest" else 1, source.width // op.num_groups)

    def emit(plan: _native.Plan) -> None:
        plan.route(
            input=layout.place(source),
            out=layout.place(out),
            is_sigmoid=op.scoring == "sigmoid",
            top_k=op.top_k,
            num_groups=op.num_groups,
            top_groups=op.top_groups,
            num_counted=num_counted,
            bias=bias,
            normalise=op.normalise,
            scale=op.scale,
        )

    writer.row_op(emit, source, out, is_selected=source.is_selected)


def lower_experts(op: Experts, writer: PlanWriter) -> None:
    """Gathered and made ready, gate and up, made ready again, down and the sum."""
    source, routing = writer.values[op.input], writer.values[op.routing]
    if source.is_selected or op.kind not in GATES:
        raise refuse(op, f" with {op.kind}, or behind SelectRows,")
    loader, layout = writer.loader, writer.layout
    width, out_width = loader.shape(op.gates[0])[0], loader.shape(op.downs[0])[0]
    pairs, downs = loader.stacked_gated(op.gates, op.ups), loader.stacked(op.downs)
    ready = _prepared(op, writer, source.width, op.gates[0])
    hidden = layout.new(width, is_selected=False, places=op.top_k)
    hidden_ready = _prepared(op, writer, width, op.downs[0])
    out = writer.new(op.out, out_width, like=op.input)
    schedules: list[int] = []

    def gather(plan: _native.Plan) -> None:
        places = writer.limits.max_tokens * op.top_k
        schedules.append(
            plan.expert_gather(
                routing=layout.place(routing),
                max_places=places,
                input=layout.place(source),
                out=layout.place_prepared(ready),
            )
        )

    def pair(plan: _native.Plan) -> None:
        plan.expert_pairs(
            schedules[0],
            pairs,
            num_rows=2 * aligned_rows(width),
            gate=GATES[op.kind],
            input=layout.place_prepared(ready),
            out=layout.place(hidden),
        )

    def prepare(plan: _native.Plan) -> None:
        plan.expert_prepare(schedules[0], input=layout.place(hidden), out=layout.place_prepared(hidden_ready))

    def add_up(plan: _native.Plan) -> None:
        plan.expert_sum(
            schedules[0], downs, num_rows=out_width, input=layout.place_prepared(hidden_ready), out=layout.place(out)
        )

    writer.own_stage(gather, routing, source, ready)
    writer.own_stage(pair, ready, hidden)
    writer.own_stage(prepare, hidden, hidden_ready)
    writer.own_stage(add_up, hidden_ready, routing, out)


def _prepared(op: Experts, writer: PlanWriter, width: int, matrix: str) -> Prepared:
    is_wide = writer.loader.form(matrix).form == "bf16"
    return writer.layout.new_prepared(width, is_selected=False, has_q=not is_wide, has_wide=is_wide, places=op.top_k)
