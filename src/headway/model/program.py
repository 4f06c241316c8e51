"""Program: a model as a list of ops over named values, with its weights and caches. No arrays, no file formats.

Made by an architecture file from a ModelShape (registry.make_program), run by executor/, costed by planner/, shown by
describe(). check() is called where a Program is made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from headway.errors import InvariantBroken
from headway.model.ops import (
    Add,
    AllGather,
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
    Op,
    Pool,
    Rope,
    Route,
    SelectRows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """What one Attention keeps for each token: K of num_kv_heads * qk_dim elements and V of num_kv_heads * v_dim.

    Where v_in_k is set, V is the first v_dim columns of K and not kept again.
    """

    cache_id: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    window: int | None = None
    """Keys further back than this are never read again."""
    v_in_k: bool = False

    @property
    def own_v_dim(self) -> int:
        """Columns of V for each head that are kept beside K."""
        return 0 if self.v_in_k else self.v_dim

    @property
    def elements_per_token(self) -> int:
        """K and V together."""
        return self.num_kv_heads * (self.qk_dim + self.own_v_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model. `ops` run in order. A language model's last is Logits; an encoder has a Pool, and no caches."""

    architecture: str
    ops: tuple[Op, ...]
    weights: Mapping[str, tuple[int, ...]]
    """Canonical name -> shape, each tensor once however often it is used."""
    caches: tuple[CacheSpec, ...]
    """Ordered by cache_id, from 0."""
    vocab_size: int
    """Token ids are below it."""
    hidden_size: int
    max_position: int
    """Positions at or over it are not computed rightly."""

    @property
    def is_encoder(self) -> bool:
        """Whether it makes a row of each sequence, whole, and no logits."""
        return any(isinstance(op, Pool) for op in self.ops)

    @property
    def result(self) -> str:
        """The value that is read by who runs it."""
        return self.ops[-1].out

    @property
    def num_weights(self) -> int:
        """Elements of all weights."""
        return sum(_num_elements(shape) for shape in self.weights.values())

    @property
    def num_active_weights(self) -> int:
        """Elements that one token is multiplied by at most: of the experts only as many as it is given."""
        idle = 0
        for op in self.ops:
            if isinstance(op, Experts):
                of_one = sum(_num_elements(self.weights[names[0]]) for names in (op.gates, op.ups, op.downs))
                idle += (op.num_experts - op.top_k) * of_one
        return self.num_weights - idle

    def check(self) -> None:
        """Raises InvariantBroken unless each value is made once and before its use and all shapes agree."""
        self._check_values()
        self._check_ends()

    def widths(self, *, is_selected: bool = False) -> dict[str, int]:
        """Width of each value that has a row a token (of all up to SelectRows), or a row for each of the selected."""
        widths, selected = self._check_values()
        return {name: width for name, width in widths.items() if selected[name] == is_selected}

    def _check_values(self) -> tuple[dict[str, int], dict[str, bool]]:
        widths: dict[str, int] = {}
        is_selected: dict[str, bool] = {}
        for op in self.ops:
            for name in op.inputs:
                if name not in widths:
                    raise InvariantBroken(f"{_title(op)} reads {name!r}, which no op before it makes")
            if op.out in widths:
                raise InvariantBroken(f"{_title(op)} makes {op.out!r} a second time")
            if len({is_selected[name] for name in op.inputs}) > 1:
                raise InvariantBroken(f"{_title(op)} mixes all tokens with selected rows")
            widths[op.out] = _check_op(op, widths, self)
            is_selected[op.out] = isinstance(op, SelectRows | Pool) or any(is_selected[name] for name in op.inputs)
        return widths, is_selected

    def _check_ends(self) -> None:
        if not self.ops or not (isinstance(self.ops[-1], Logits) or self.is_encoder):
            raise InvariantBroken("a Program ends with Logits, or has a Pool")
        used = [op.cache_id for op in self.ops if isinstance(op, Attention) and op.cache_id is not None]
        kept = [cache.cache_id for cache in self.caches]
        if sorted(used) != kept or kept != list(range(len(kept))):
            raise InvariantBroken(f"Attention ops use caches {used}, the Program keeps {kept}")
        named = {name for op in self.ops for name in op.weights}
        if named != set(self.weights):
            raise InvariantBroken(f"weights that ops and Program do not share: {sorted(named ^ set(self.weights))}")


def _num_elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _title(op: Op) -> str:
    return f"{type(op).__name__}({op.out})"


def _expect(op: Op, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise InvariantBroken(f"{_title(op)}: {what} is {found}, it must be {wanted}")


def _check_op(op: Op, widths: Mapping[str, int], program: Program) -> int:
    """Width of what the op makes."""
    shape_of = program.weights.get
    for name in op.weights:
        if name not in program.weights:
            raise InvariantBroken(f"{_title(op)}: the Program has no weight {name!r}")
    match op:
        case Embed():
            return program.weights[op.table][-1]
        case Linear():
            out_width = program.weights[op.weight][0]
            _expect(op, op.weight, shape_of(op.weight), (out_width, widths[op.input]))
            if op.bias is not None:
                _expect(op, op.bias, shape_of(op.bias), (out_width,))
            return out_width
        case Norm():
            return _check_norm(op, widths, program)
        case Mul() | Add():
            if not (isinstance(op, Mul) and widths[op.right] == 1):
                _expect(op, f"width of {op.right}", widths[op.right], widths[op.left])
            return widths[op.left]
        case Rope():
            _expect(op, f"width of {op.input} modulo head_dim", widths[op.input] % op.head_dim, 0)
            if op.start < 0 or not 0 < op.dims <= op.head_dim - op.start:
                raise InvariantBroken(f"{_title(op)}: {op.dims} of {op.head_dim} columns turn, from {op.start} on")
            return widths[op.input]
        case Attention():
            return _check_attention(op, widths, program)
        case Join():
            return sum(widths[name] for name in op.parts)
        case HeadLinear():
            return _check_head_linear(op, widths, program)
        case Route():
            return _check_route(op, widths, program)
        case Experts():
            return _check_experts(op, widths, program)
        case AllGather():
            if widths[op.input] not in op.parts:
                raise InvariantBroken(f"{_title(op)}: no rank has {widths[op.input]} columns, they have {op.parts}")
            return sum(op.parts)
        case Columns():
            if not 0 <= op.first < op.first + op.width <= widths[op.input]:
                raise InvariantBroken(f"{_title(op)}: {op.width} columns from {op.first} on, of {widths[op.input]}")
            return op.width
        case Logits():
            _expect(op, f"width of {op.input}", widths[op.input], program.vocab_size)
            return program.vocab_size
        case _:
            return widths[op.inputs[0]]


def _check_norm(op: Norm, widths: Mapping[str, int], program: Program) -> int:
    width = widths[op.input]
    (norm_width,) = program.weights[op.weight]
    if op.over == "hidden":
        _expect(op, op.weight, norm_width, width)
    else:
        _expect(op, f"width of {op.input} modulo that of {op.weight}", width % norm_width, 0)
    if op.bias is not None:
        _expect(op, op.bias, program.weights[op.bias], (norm_width,))
    return width


def _check_attention(op: Attention, widths: Mapping[str, int], program: Program) -> int:
    _expect(op, "num_heads modulo num_kv_heads", op.num_heads % op.num_kv_heads, 0)
    _expect(op, f"width of {op.q}", widths[op.q], op.num_heads * op.qk_dim)
    _expect(op, f"width of {op.k}", widths[op.k], op.num_kv_heads * op.qk_dim)
    if op.v is not None:
        _expect(op, f"width of {op.v}", widths[op.v], op.num_kv_heads * op.v_dim)
    elif op.v_dim > op.qk_dim:
        raise InvariantBroken(f"{_title(op)}: {op.v_dim} columns of a value in keys of {op.qk_dim}")
    if op.cache_id is None:
        return op.num_heads * op.v_dim
    if not 0 <= op.cache_id < len(program.caches):
        raise InvariantBroken(f"{_title(op)}: there is no cache {op.cache_id}")
    cache = program.caches[op.cache_id]
    _expect(op, "cache", (cache.num_kv_heads, cache.qk_dim, cache.v_dim), (op.num_kv_heads, op.qk_dim, op.v_dim))
    _expect(op, "the cache's v_in_k", cache.v_in_k, op.v is None)
    return op.num_heads * op.v_dim


def _check_head_linear(op: HeadLinear, widths: Mapping[str, int], program: Program) -> int:
    num_heads, out_width, in_width = program.weights[op.weight]
    _expect(op, f"width of {op.input}", widths[op.input], num_heads * (in_width + op.kept))
    return num_heads * (out_width + op.kept)


def _check_route(op: Route, widths: Mapping[str, int], program: Program) -> int:
    width = widths[op.input]
    _expect(op, "experts modulo num_groups", width % op.num_groups, 0)
    reachable = width // op.num_groups * op.top_groups
    if not (1 <= op.top_groups <= op.num_groups and 1 <= op.top_k <= reachable):
        raise InvariantBroken(f"{_title(op)}: {op.top_k} of {width} experts, {op.top_groups} of {op.num_groups} groups")
    if op.bias is not None:
        _expect(op, op.bias, program.weights[op.bias], (width,))
    return width


def _check_experts(op: Experts, widths: Mapping[str, int], program: Program) -> int:
    _expect(op, f"width of {op.routing}", widths[op.routing], op.num_experts)
    in_width, height = widths[op.input], program.weights[op.gates[0]][0]
    out_width = program.weights[op.downs[0]][0]
    for gate, up, down in zip(op.gates, op.ups, op.downs, strict=True):
        _expect(op, gate, program.weights[gate], (height, in_width))
        _expect(op, up, program.weights[up], (height, in_width))
        _expect(op, down, program.weights[down], (out_width, height))
    return out_width


def describe(program: Program) -> str:
    """The Program as text: a head, one line an op, weights with their shapes. For people; not parsed again."""
    active = program.num_active_weights
    of_token = f" ({active:,} for a token)" if active != program.num_weights else ""
    head = (
        f"{program.architecture}: {program.num_weights:,} weights{of_token} in {len(program.weights)} tensors, "
        f"{len(program.ops)} ops, {_caches_text(program)}, "
        f"vocabulary {program.vocab_size:,}, positions {program.max_position:,}"
    )
    width = max((len(op.out) for op in program.ops), default=0)
    lines = (f"  {op.out:<{width}} = {type(op).__name__}({', '.join(_arguments(op, program))})" for op in program.ops)
    return "\n".join([head, *lines])


def _caches_text(program: Program) -> str:
    """How many, what a token takes in all of them, and how far back those with a window look."""
    if program.is_encoder:
        return "no cache"
    kv = sum(cache.elements_per_token for cache in program.caches)
    windows = [cache.window for cache in program.caches if cache.window is not None]
    sizes = " or ".join(f"{window:,}" for window in sorted(set(windows)))
    seen = f" ({len(windows)} of them read the last {sizes} tokens)" if windows else ""
    return f"{len(program.caches)} caches of {kv:,} elements a token{seen}"


def _arguments(op: Op, program: Program) -> Iterator[str]:
    yield from op.inputs
    yield from _weight_texts(op, program)
    shown = {"out", *_names_of_strings(op)}
    for item in fields(op):
        value = getattr(op, item.name)
        if item.name in shown or value == item.default:
            continue
        yield f"{item.name}={_value_text(value)}"


def _weight_texts(op: Op, program: Program) -> Iterator[str]:
    """Each weight with its shape; one expert's stand for those of all."""
    if isinstance(op, Experts):
        firsts = (op.gates[0], op.ups[0], op.downs[0])
        parts = zip(("gate", "up", "down"), firsts, strict=True)
        yield from (f"{op.name}.*.{part}.weight{list(program.weights[name])}" for part, name in parts)
    else:
        yield from (f"{name}{list(program.weights[name])}" for name in op.weights)


def _names_of_strings(op: Op) -> Iterator[str]:
    named = {*op.inputs, *op.weights}
    for item in fields(op):
        value = getattr(op, item.name)
        if (isinstance(value, str) and value in named) or (isinstance(value, tuple) and named.issuperset(value)):
            yield item.name


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{value[0]:.4g} .. {value[-1]:.4g}; {len(value)}]" if value else "[]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
