"""Compiles a Program into a native plan: fused, laid out in one arena, cut into stages between which threads meet.

The fusions, each of which can be left out and none of which changes a bit:

    linears, ropes, gates, residuals   fuse.py's
    gated_products                     gate and up in one product, which ends with the gate
    row_stages                         ops that work row by row share a stage: a block of rows goes through all of them
    in_place                           a value that is not read again is overwritten
"""

from collections.abc import Collection, Sequence
from typing import get_args

from headway import _native
from headway.executor.base import KVBuffers
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
)
from headway.executor.native_experts import lower_experts, lower_route
from headway.executor.native_heads import lower_head_linear, lower_join
from headway.executor.native_layout import Layout
from headway.executor.native_products import (
    lower_add_linear,
    lower_attention,
    lower_gated_linear,
    lower_joined_linear,
    lower_linear,
)
from headway.executor.native_rope import RopeTables
from headway.executor.native_row_ops import (
    GATES,
    lower_elementwise,
    lower_embed,
    lower_gate,
    lower_logits,
    lower_norm,
    lower_pool,
    lower_rope,
    lower_select,
)
from headway.executor.native_weights import MatrixLoader
from headway.executor.native_writer import NativeFusion, PlanLimits, PlanWriter, Stage, refuse
from headway.executor.op_times import Label, label, part_of
from headway.model.ops import (
    Activation,
    AllGather,
    AllReduce,
    Attention,
    Columns,
    Embed,
    Experts,
    HeadLinear,
    Join,
    Linear,
    Logits,
    Norm,
    Pool,
    Rope,
    Route,
    SelectRows,
)
from headway.model.program import Program
from headway.planner.run_form import FLOAT_FORMS

NativeOp = PlanOp | GatedLinear


def compile_plan(
    program: Program,
    loader: MatrixLoader,
    kv: KVBuffers,
    limits: PlanLimits,
    fusions: Collection[NativeFusion],
    workers: _native.Workers,
) -> tuple[_native.Plan, list[Label]]:
    """The plan of a Program, its weights loaded and its memory taken, and what each of its stages runs; blocks.

    Raises:
        UnsupportedModel: what the native executor does not run, by name.
        MemoryError: names the bytes needed.
    """
    types = [op for op in program.ops if isinstance(op, Embed) and op.index == "token_type"]
    if types and not program.is_encoder:
        raise refuse(types[0], " of token types, of a language model,")
    ops = _fuse(program, loader, fusions)
    has_floats = any(loader.form(name).form == "f32" for name in _all_matrices(ops))
    multiplies_bf16 = _native.step_kernels()[2] and not has_floats
    writer = PlanWriter(
        loader=loader,
        kv=kv,
        limits=limits,
        vocab_size=program.vocab_size,
        logits_source=_result_source(program),
        fusions=fusions,
        layout=Layout(limits.max_tokens, limits.max_selected, 2 if multiplies_bf16 else 4),
        ropes=RopeTables(limits.max_context),
        last_use={name: at for at, op in enumerate(ops) for name in op.inputs},
        readers=_readers(ops, loader),
    )
    for writer.at, op in enumerate(ops):
        lower(op, writer)
    plan = _emit(program, writer, workers, has_floats=has_floats)
    return plan, _labels(ops, writer.stages)


def _labels(ops: Sequence[NativeOp], stages: Sequence[Stage]) -> list[Label]:
    """Of the native plan's stages: an attention is two, its parts and the joining of them."""
    labels: list[Label] = []
    for stage in stages:
        parts = [ops[at] for at in dict.fromkeys(stage.ops)]
        labels.append(label(_row_part(op) if stage.is_rows else part_of(op) for op in parts))
        if not stage.is_rows and isinstance(ops[stage.ops[0]], Attention):
            labels.append(("Attention (join)", labels[-1][1]))
    return [*labels, ("Check", ""), ("Sample", "")]


def _row_part(op: NativeOp) -> tuple[str, Sequence[str]]:
    """What is done of an op row by row: a product's input is made ready, an attention's K and V go into the cache."""
    match op:
        case Linear() | AddLinear() | JoinedLinear() | GatedLinear():
            return "Prepare", (op.input,)
        case Attention():
            return "WriteKV", (op.k,) if op.v is None else (op.k, op.v)
        case _:
            return part_of(op)


def _fuse(program: Program, loader: MatrixLoader, fusions: Collection[NativeFusion]) -> Sequence[NativeOp]:
    def is_alike(left: str, right: str) -> bool:
        return (loader.form(left), loader.shape(left)) == (loader.form(right), loader.shape(right))

    fused = fuse(program.ops, [name for name in get_args(Fusion) if name in fusions])
    return join_gates(fused, tuple(GATES), is_alike) if "gated_products" in fusions else fused


def _result_source(program: Program) -> str:
    """The value that is made to be read by who runs the plan; what follows works in its place."""
    last = program.ops[-1]
    return last.inputs[0] if isinstance(last, Logits | Activation) else last.out


def _readers(ops: Sequence[NativeOp], loader: MatrixLoader) -> dict[str, frozenset[bool]]:
    """Which kinds of matrices multiply each value: True for bf16 and f32."""
    kinds: dict[str, frozenset[bool]] = {}
    for op in ops:
        if isinstance(op, Linear | AddLinear | JoinedLinear | GatedLinear):
            forms = frozenset(loader.form(name).form in FLOAT_FORMS for name in _matrices(op))
            kinds[op.input] = kinds.get(op.input, frozenset()) | forms
    return kinds


def _matrices(op: Linear | AddLinear | JoinedLinear | GatedLinear) -> tuple[str, ...]:
    match op:
        case JoinedLinear():
            return op.weights
        case GatedLinear():
            return op.gate, op.up
        case _:
            return (op.weight,)


def lower(op: NativeOp, writer: PlanWriter) -> None:
    """Writes one op."""
    match op:
        case Embed():
            lower_embed(op, writer)
        case Norm():
            lower_norm(op, writer)
        case Linear():
            lower_linear(op, writer)
        case JoinedLinear():
            lower_joined_linear(op, writer)
        case AddLinear():
            lower_add_linear(op, writer)
        case GatedLinear():
            lower_gated_linear(op, writer)
        case Rope():
            lower_rope((op.out,), (op.input,), op, writer)
        case JoinedRope():
            lower_rope(op.outs, op.inputs, op.rope, writer)
        case Attention():
            lower_attention(op, writer)
        case Gate():
            lower_gate(op, writer)
        case SelectRows():
            lower_select(op, writer)
        case Pool():
            lower_pool(op, writer)
        case Logits():
            lower_logits(op, writer)
        case Join():
            lower_join(op, writer)
        case HeadLinear():
            lower_head_linear(op, writer)
        case Route():
            lower_route(op, writer)
        case Experts():
            lower_experts(op, writer)
        case AllReduce() | AllGather() | Columns():
            raise refuse(op, ", in a part of a model,")
        case _:
            lower_elementwise(op, writer)


def _all_matrices(ops: Sequence[NativeOp]) -> set[str]:
    tables = {op.table for op in ops if isinstance(op, Embed)}
    products = (op for op in ops if isinstance(op, Linear | AddLinear | JoinedLinear | GatedLinear))
    return tables | {name for op in products for name in _matrices(op)}


def _emit(program: Program, writer: PlanWriter, workers: _native.Workers, *, has_floats: bool) -> _native.Plan:
    """Gives every value its place and hands the stages over."""
    layout, limits = writer.layout, writer.limits
    logits = writer.values[program.result]
    last_hidden = writer.last_hidden or logits
    layout.use(len(writer.stages), logits, last_hidden)
    plan = _native.Plan(
        workers,
        max_tokens=limits.max_tokens,
        max_selected=limits.max_selected,
        max_seqs=limits.max_seqs,
        max_context=limits.max_context,
        num_embeddings=program.vocab_size,
        num_blocks=writer.kv.num_blocks,
        block_size=writer.kv.block_size,
        arena_bytes=layout.place_all(),
        has_floats=has_floats,
    )
    for stage in writer.stages:
        if stage.is_rows:
            plan.row_stage(is_selected=stage.is_selected, cuts_at_blocks=stage.cut == "blocks")
        for emit in stage.emits:
            emit(plan)
    plan.finish(last_hidden=layout.place(last_hidden), logits=layout.place(logits))
    return plan
