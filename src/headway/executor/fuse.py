"""Fusions: passes over a Program's ops that join what can run as one call. Each is named and can be left out.

    linears    Linear ops that read the same value become one: qkv; gate and up
    ropes      Rope ops that turn neighbouring columns of such a joint value become one: q and k
    gates      an Activation and the Mul that alone reads it
    residuals  a Linear (with a Scale) and the Add that alone reads it

join_gates does one more, for executors whose products can end with a gate. Values keep their names and what they
hold, up to rounding.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headway.model.ops import Activation, ActivationKind, Add, Linear, Mul, OneInput, Op, Rope, Scale

Fusion = Literal["linears", "ropes", "gates", "residuals"]
ALL_FUSIONS: tuple[Fusion, ...] = ("linears", "ropes", "gates", "residuals")


class _OneOut:
    __slots__ = ()
    out: str

    @property
    def outs(self) -> tuple[str, ...]:
        """The value made."""
        return (self.out,)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLinear(OneInput):
    """Linears over one input; outs are neighbouring columns of one matrix, in this order."""

    outs: tuple[str, ...]
    input: str
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    """One each, or none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRope:
    """One turn for inputs that are neighbouring columns of one matrix."""

    outs: tuple[str, ...]
    inputs: tuple[str, ...]
    rope: Rope
    """Its numbers; its names do not matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(_OneOut):
    """out = activation(gate) * up."""

    out: str
    gate: str
    up: str
    kind: ActivationKind

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.gate, self.up)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddLinear(_OneOut):
    """out = base + (input @ weight.T + bias) * scale."""

    out: str
    base: str
    input: str
    weight: str
    bias: str | None
    scale: float

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values read."""
        return (self.base, self.input)


PlanOp = Op | JoinedLinear | JoinedRope | Gate | AddLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedLinear(OneInput, _OneOut):
    """out = activation(input @ gate.T + gate_bias) * (input @ up.T + up_bias)."""

    out: str
    input: str
    gate: str
    up: str
    gate_bias: str | None
    up_bias: str | None
    kind: ActivationKind


def outs_of(op: PlanOp | GatedLinear) -> tuple[str, ...]:
    """The values that an op makes."""
    return op.outs if isinstance(op, JoinedLinear | JoinedRope | Gate | AddLinear | GatedLinear) else (op.out,)


def fuse(ops: Sequence[Op], fusions: Collection[Fusion] = ALL_FUSIONS) -> tuple[PlanOp, ...]:
    """The ops with the named fusions done. A joint op stands where the first of its parts stood, other fused ones where
    the last did."""
    plan: tuple[PlanOp, ...] = tuple(ops)
    for name, run in _PASSES.items():
        if name in fusions:
            plan = run(plan)
    return plan


def join_gates(
    plan: Sequence[PlanOp], kinds: Collection[ActivationKind], is_alike: Callable[[str, str], bool]
) -> tuple[PlanOp | GatedLinear, ...]:
    """A JoinedLinear of two and the Gate that alone reads them become one op, which stands where the gate stood.

    Args:
        kinds: activations that a product can end with.
        is_alike: whether two weights can be laid out as one.
    """
    readers = Counter(name for op in plan for name in op.inputs)
    pairs = {op.outs: op for op in plan if isinstance(op, JoinedLinear) and len(op.outs) == 2}
    joined: dict[str, GatedLinear] = {}
    dropped: set[str] = set()
    for op in plan:
        if not isinstance(op, Gate) or op.kind not in kinds or readers[op.gate] + readers[op.up] != 2:
            continue
        pair = pairs.get((op.gate, op.up)) or pairs.get((op.up, op.gate))
        if pair is not None and is_alike(*pair.weights):
            joined[op.out] = _gated(op, pair)
            dropped.add(pair.outs[0])
    kept = (op for op in plan if outs_of(op)[0] not in dropped)
    return tuple(joined.get(outs_of(op)[0], op) for op in kept)


def _gated(gate: Gate, pair: JoinedLinear) -> GatedLinear:
    weights = dict(zip(pair.outs, pair.weights, strict=True))
    biases = dict(zip(pair.outs, pair.biases, strict=True)) if pair.biases else {}
    return GatedLinear(
        out=gate.out,
        input=pair.input,
        gate=weights[gate.gate],
        up=weights[gate.up],
        gate_bias=biases.get(gate.gate),
        up_bias=biases.get(gate.up),
        kind=gate.kind,
    )


def _rebuild(plan: Sequence[PlanOp], replaced: dict[str, PlanOp], dropped: set[str]) -> tuple[PlanOp, ...]:
    """The plan with some ops replaced and some left out, each found by the first value that it makes."""
    kept = (op for op in plan if outs_of(op)[0] not in dropped)
    return tuple(replaced.get(outs_of(op)[0], op) for op in kept)


def _fuse_residuals(plan: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
    readers = Counter(name for op in plan for name in op.inputs)
    makers = {op.out: op for op in plan if isinstance(op, Linear | Scale) and readers[op.out] == 1}
    replaced: dict[str, PlanOp] = {}
    dropped: set[str] = set()
    for op in plan:
        if not isinstance(op, Add):
            continue
        update, scale, chain = makers.get(op.right), 1.0, {op.right}
        if isinstance(update, Scale):
            scale, chain = update.factor, {op.right, update.input}
            update = makers.get(update.input)
        if isinstance(update, Linear):
            dropped |= chain
            replaced[op.out] = AddLinear(
                out=op.out, base=op.left, input=update.input, weight=update.weight, bias=update.bias, scale=scale
            )
    return _rebuild(plan, replaced, dropped)


def _fuse_gates(plan: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
    readers = Counter(name for op in plan for name in op.inputs)
    active = {op.out: op for op in plan if isinstance(op, Activation) and readers[op.out] == 1}
    gates = {op.out: (active[op.left], op) for op in plan if isinstance(op, Mul) and op.left in active}
    replaced: dict[str, PlanOp] = {
        out: Gate(out=out, gate=activation.input, up=mul.right, kind=activation.kind)
        for out, (activation, mul) in gates.items()
    }
    return _rebuild(plan, replaced, {activation.out for activation, _ in gates.values()})


def _join_linears(plan: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
    # What a gate reads is kept apart from other products of the same input: it can be finished by the gate.
    gates = {name: op.out for op in plan if isinstance(op, Gate) for name in (op.gate, op.up)}
    siblings: dict[tuple[str, bool, str | None], list[Linear]] = {}
    for op in plan:
        if isinstance(op, Linear):
            siblings.setdefault((op.input, op.bias is None, gates.get(op.out)), []).append(op)
    replaced: dict[str, PlanOp] = {}
    dropped: set[str] = set()
    for group in siblings.values():
        if len(group) > 1:
            replaced[group[0].out] = JoinedLinear(
                outs=tuple(op.out for op in group),
                input=group[0].input,
                weights=tuple(op.weight for op in group),
                biases=tuple(op.bias for op in group if op.bias is not None),
            )
            dropped |= {op.out for op in group[1:]}
    return _rebuild(plan, replaced, dropped)


def _join_ropes(plan: tuple[PlanOp, ...]) -> tuple[PlanOp, ...]:
    turns = {op.input: op for op in plan if isinstance(op, Rope)}
    replaced: dict[str, PlanOp] = {}
    dropped: set[str] = set()
    for joint in plan:
        if not isinstance(joint, JoinedLinear):
            continue
        first, second = (turns.get(name) for name in joint.outs[:2])
        if first is None or second is None or replace(second, out=first.out, input=first.input) != first:
            continue
        replaced[first.out] = JoinedRope(outs=(first.out, second.out), inputs=(first.input, second.input), rope=first)
        dropped.add(second.out)
    return _rebuild(plan, replaced, dropped)


_PASSES: dict[Fusion, Callable[[tuple[PlanOp, ...]], tuple[PlanOp, ...]]] = {
    "residuals": _fuse_residuals,
    "gates": _fuse_gates,
    "linears": _join_linears,
    "ropes": _join_ropes,
}
