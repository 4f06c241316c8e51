"""The ops as torch calls: compile_op turns an op of a plan into a function over the registers of a step.

A register holds a value of the Program, a tensor [rows, width]; torch.py numbers them. The outputs of a joint linear
are views of one matrix.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headway.errors import InvariantBroken, UnsupportedModel
from headway.executor.fuse import AddLinear, Gate, JoinedLinear, JoinedRope, PlanOp
from headway.executor.torch_attention import PagedCache, StepGroups, Workspace, attend
from headway.executor.torch_encoder import Sequences, attend_whole, pool
from headway.executor.torch_experts import route, run_experts
from headway.executor.torch_ranks import Group
from headway.executor.torch_rope import Turns, make_turn
from headway.executor.torch_shared import make_shared
from headway.executor.torch_weights import WeightLoader
from headway.model.ops import (
    Activation,
    ActivationKind,
    Add,
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
    Mul,
    Norm,
    Pool,
    Rope,
    Route,
    Scale,
    SelectRows,
)

Registers = list[Any]
"""Tensors by number; None where a value is not made yet or not needed any more."""


@dataclass(slots=True)
class StepTensors:
    """A step's arrays on the device, and what layers share: cosines and sines by the rope that asked for them."""

    token_ids: Tensor  # [num_tokens]
    positions: Tensor  # [num_tokens]
    slots: Tensor  # [num_tokens]
    logit_rows: Tensor  # [num_logit_rows]
    groups: StepGroups
    turns: Turns = field(default_factory=dict)
    token_types: Tensor | None = None  # [num_tokens], of an encoder's step
    sequences: Sequences | None = None
    """Of an encoder's step."""


Run = Callable[[Registers, StepTensors], None]


@dataclass(slots=True)
class Compiler:
    """What compiling an op needs."""

    register: Mapping[str, int]
    weights: WeightLoader
    caches: tuple[PagedCache, ...]
    dtype: torch.dtype
    device: torch.device
    workspace: Workspace
    last_product: str
    """The value that becomes logits."""
    is_last_use: Callable[[PlanOp, str], bool]
    """Whether no later op reads this input of the op, so that it may overwrite it."""
    clears_unused: list[bool] = field(default_factory=lambda: [False])
    """One flag, shared with the executor: caches hold numbers that are not finite."""
    ropes: dict[Hashable, int] = field(default_factory=dict)
    """Numbers of the distinct ropes."""
    group: Group | None = None
    """The ranks that compute the model together, where there are several."""


def compile_op(op: PlanOp, compiler: Compiler) -> Run:
    """The function of an op. Raises UnsupportedModel for what this executor does not run."""
    match op:
        case Embed():
            return _embed(op, compiler)
        case Norm():
            return _norm(op, compiler)
        case Linear():
            return _linear(op, compiler)
        case JoinedLinear():
            return _joined_linear(op, compiler)
        case AddLinear():
            return _add_linear(op, compiler)
        case Rope():
            return _rope(op, compiler)
        case JoinedRope():
            return _joined_rope(op, compiler)
        case Attention():
            return _attention(op, compiler)
        case Gate():
            return _gate(op, compiler)
        case HeadLinear():
            return _head_linear(op, compiler)
        case Route():
            return _route(op, compiler)
        case Experts():
            return _experts(op, compiler)
        case Pool():
            return _pool(op, compiler)
        case Logits():
            return _logits(op, compiler)
        case _:
            return _elementwise(op, compiler)


_Elementwise = Activation | Mul | Add | Scale | Join | SelectRows | AllReduce | AllGather | Columns


def _elementwise(op: _Elementwise, compiler: Compiler) -> Run:
    out = compiler.register[op.out]
    sources = [compiler.register[name] for name in op.inputs]
    match op:
        case Activation():
            function = _ACTIVATIONS[op.kind]
        case Scale():
            factor = op.factor

            def function(value: Tensor) -> Tensor:
                return value * factor
        case AllReduce() | AllGather() | Columns():
            function = make_shared(op, compiler.group)
        case Mul():
            function = torch.mul
        case Add():
            function = torch.add
        case Join():

            def function(*parts: Tensor) -> Tensor:
                return torch.cat(parts, dim=1)
        case SelectRows():
            source = sources[0]

            def select(registers: Registers, step: StepTensors) -> None:
                registers[out] = registers[source].index_select(0, step.logit_rows)

            return select

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = function(*[registers[source] for source in sources])

    return run


def _gelu_tanh(value: Tensor) -> Tensor:
    return functional.gelu(value, approximate="tanh")


_ACTIVATIONS: dict[ActivationKind, Callable[..., Tensor]] = {
    "silu": functional.silu,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _embed(op: Embed, compiler: Compiler) -> Run:
    out, table, offset, scale = compiler.register[op.out], compiler.weights.load(op.table), op.offset, op.scale
    index_name = {"token": "token_ids", "position": "positions", "token_type": "token_types"}[op.index]

    def run(registers: Registers, step: StepTensors) -> None:
        index = getattr(step, index_name)
        value = functional.embedding(index + offset if offset else index, table)
        registers[out] = value.mul_(scale) if scale != 1.0 else value

    return run


def _norm(op: Norm, compiler: Compiler) -> Run:
    out, source, eps = compiler.register[op.out], compiler.register[op.input], op.eps
    weight = compiler.weights.load(op.weight)
    if op.one_plus:
        weight = weight + 1
    bias = None if op.bias is None else compiler.weights.load(op.bias)
    width = tuple(weight.shape)
    if op.kind == "layer":

        def normalise(value: Tensor) -> Tensor:
            return functional.layer_norm(value, width, weight, bias, eps)
    else:

        def normalise(value: Tensor) -> Tensor:
            normed = functional.rms_norm(value, width, weight, eps)
            return normed if bias is None else normed + bias

    over_heads = op.over == "head"

    def run(registers: Registers, step: StepTensors) -> None:
        value = registers[source]
        if over_heads:
            registers[out] = normalise(value.view(value.shape[0], value.shape[1] // width[0], *width)).flatten(1)
        else:
            registers[out] = normalise(value)

    return run


def _linear(op: Linear, compiler: Compiler) -> Run:
    out, source = compiler.register[op.out], compiler.register[op.input]
    bias = None if op.bias is None else compiler.weights.load(op.bias)
    product = compiler.weights.product((op.weight,), bias, is_last=op.out == compiler.last_product)

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = product(registers[source])

    return run


def _joined_linear(op: JoinedLinear, compiler: Compiler) -> Run:
    outs, source = [compiler.register[name] for name in op.outs], compiler.register[op.input]
    bias = compiler.weights.load_joined(op.biases) if op.biases else None
    product = compiler.weights.product(op.weights, bias)
    widths = [compiler.weights.shape(name)[0] for name in op.weights]

    def run(registers: Registers, step: StepTensors) -> None:
        joint = product(registers[source])
        for out, part in zip(outs, joint.split_with_sizes(widths, 1), strict=True):
            registers[out] = part

    return run


def _add_linear(op: AddLinear, compiler: Compiler) -> Run:
    out, base, source = (compiler.register[name] for name in (op.out, op.base, op.input))
    bias = None if op.bias is None else compiler.weights.load(op.bias)
    product, scale = compiler.weights.product((op.weight,), bias), op.scale
    overwrites = compiler.is_last_use(op, op.base)

    def run(registers: Registers, step: StepTensors) -> None:
        # Not addmm: a sum that starts from the residual, often in the hundreds, rounds each term to the residual's ulp.
        update = product(registers[source])
        if overwrites:
            registers[out] = registers[base].add_(update, alpha=scale)
        else:
            registers[out] = torch.add(registers[base], update, alpha=scale)

    return run


def _gate(op: Gate, compiler: Compiler) -> Run:
    out, gate, up = (compiler.register[name] for name in (op.out, op.gate, op.up))
    activation = _ACTIVATIONS[op.kind]

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = activation(registers[gate]).mul_(registers[up])

    return run


def _rope(op: Rope, compiler: Compiler) -> Run:
    out, source, turn = (
        compiler.register[op.out],
        compiler.register[op.input],
        make_turn(op, compiler.ropes, compiler.dtype, compiler.device),
    )

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = turn(registers[source], step.positions, step.turns)

    return run


def _joined_rope(op: JoinedRope, compiler: Compiler) -> Run:
    outs = [compiler.register[name] for name in op.outs]
    sources = [compiler.register[name] for name in op.inputs]
    turn = make_turn(op.rope, compiler.ropes, compiler.dtype, compiler.device)

    def run(registers: Registers, step: StepTensors) -> None:
        parts = [registers[source] for source in sources]
        widths = [part.shape[1] for part in parts]
        # The parts are neighbouring columns of one matrix: a view from the first over all of them.
        joint = parts[0].as_strided((parts[0].shape[0], sum(widths)), parts[0].stride(), parts[0].storage_offset())
        for out, part in zip(outs, turn(joint, step.positions, step.turns).split_with_sizes(widths, 1), strict=True):
            registers[out] = part

    return run


def _head_linear(op: HeadLinear, compiler: Compiler) -> Run:
    out, source, kept = compiler.register[op.out], compiler.register[op.input], op.kept
    weight = compiler.weights.load(op.weight)  # [heads, out width, in width]
    heads, _, width = weight.shape

    def run(registers: Registers, step: StepTensors) -> None:
        value = registers[source].view(-1, heads, width + kept)
        made = torch.einsum("thi,hoi->tho", value[..., :width], weight)
        registers[out] = (torch.cat((made, value[..., width:]), dim=-1) if kept else made).flatten(1)

    return run


def _route(op: Route, compiler: Compiler) -> Run:
    out, source = compiler.register[op.out], compiler.register[op.input]
    bias = None if op.bias is None else compiler.weights.load(op.bias)

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = route(op, registers[source], bias)

    return run


def _experts(op: Experts, compiler: Compiler) -> Run:
    out, source, routing = (compiler.register[name] for name in (op.out, op.input, op.routing))
    pairs = [compiler.weights.product(pair) for pair in zip(op.gates, op.ups, strict=True)]
    downs = [compiler.weights.product((name,)) for name in op.downs]
    activation, width = _ACTIVATIONS[op.kind], compiler.weights.shape(op.downs[0])[0]

    def run(registers: Registers, step: StepTensors) -> None:
        registers[out] = run_experts(width, registers[source], registers[routing], pairs, downs, activation)

    return run


def _attention(op: Attention, compiler: Compiler) -> Run:
    if op.cache_id is None:
        return _whole_attention(op, compiler)
    if not op.causal:
        raise UnsupportedModel("attention that is not causal and has a cache is not supported by the torch executor")
    out, q, k = (compiler.register[name] for name in (op.out, op.q, op.k))
    v = None if op.v is None else compiler.register[op.v]
    cache, workspace, clears = compiler.caches[op.cache_id], compiler.workspace, compiler.clears_unused

    def run(registers: Registers, step: StepTensors) -> None:
        cache.write(step.slots, registers[k], None if v is None else registers[v])
        registers[out] = attend(op, registers[q], cache, step.groups, workspace, clear_unused=clears[0])

    return run


def _whole_attention(op: Attention, compiler: Compiler) -> Run:
    if op.causal or op.v is None or op.window is not None or op.soft_cap is not None:
        raise UnsupportedModel("attention without a cache is only supported where each token sees all others")
    out, q, k, v = (compiler.register[name] for name in (op.out, op.q, op.k, op.v))

    def run(registers: Registers, step: StepTensors) -> None:
        if step.sequences is None:
            raise InvariantBroken("an encoder's step has no sequences")
        registers[out] = attend_whole(op, registers[q], registers[k], registers[v], step.sequences)

    return run


def _pool(op: Pool, compiler: Compiler) -> Run:
    out, source = compiler.register[op.out], compiler.register[op.input]

    def run(registers: Registers, step: StepTensors) -> None:
        if step.sequences is None:
            raise InvariantBroken("an encoder's step has no sequences")
        registers[out] = pool(op, registers[source], step.sequences)

    return run


def _logits(op: Logits, compiler: Compiler) -> Run:
    out, source, scale, cap = compiler.register[op.out], compiler.register[op.input], op.scale, op.soft_cap

    def run(registers: Registers, step: StepTensors) -> None:
        value = registers[source].to(torch.float32)
        if scale != 1.0:
            value = value.mul_(scale)
        registers[out] = value if cap is None else value.div_(cap).tanh_().mul_(cap)

    return run
