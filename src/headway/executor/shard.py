"""shard_program: what one rank of a group computes of a Program. Pure: a Program in, a smaller one out.

Each value of the Program is, on a rank,

    whole     all of it, the same on every rank
    a share   some neighbouring columns: those of its heads, or its part of an MLP, of an expert or of the vocabulary
    a term    of the full width, and the value is the sum of all ranks' terms

1. The Linear ops that make queries, keys, values, the inside of an MLP and the scores over the vocabulary are split by
   rows of their matrix: a rank makes its share. What comes between (norms and positions of heads, activations,
   attention itself with its part of the cache) works on a share as on the whole.
2. A Linear that reads a share has that share's columns of its matrix and makes a term; its bias is rank 0's alone.
   Experts are split inside each expert, and make a term too.
3. Terms may be added and scaled. Whoever needs the whole has it by an AllReduce of terms or an AllGather of shares; who
   needs a share of a whole takes its Columns.

So a layer has one AllReduce behind its attention and one behind its MLP. Each key and value head is on one rank, or,
where there are fewer of these than ranks, on several. Embeddings and norms are whole on each rank.
Source: Shoeybi et al. 2019 (Megatron-LM).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, cast

from headway.errors import InvalidConfig, UnsupportedModel
from headway.model.ops import (
    Activation,
    Add,
    AllGather,
    AllReduce,
    Attention,
    Columns,
    Embed,
    Experts,
    HeadLinear,
    Linear,
    Logits,
    Mul,
    Norm,
    Op,
    Rope,
    Scale,
    SelectRows,
)
from headway.model.program import CacheSpec, Program

Range = tuple[int, int]
"""From the first, up to but without the second."""


@dataclass(frozen=True, slots=True)
class Share:
    """How `units` (heads, or columns) are dealt out to the ranks."""

    units: int
    ranges: tuple[Range, ...]
    """Of each rank. Neighbouring ranks may have the same ones, where there are fewer units than ranks."""

    @property
    def is_dealt_once(self) -> bool:
        """Whether each unit is on one rank."""
        return sum(end - begin for begin, end in self.ranges) == self.units

    def columns(self, rank: int, width: int) -> Range:
        """A rank's columns of a value, or rows of a matrix, that is `width` wide."""
        begin, end = self.ranges[rank]
        of_unit = width // self.units
        return begin * of_unit, end * of_unit


Place = Share | Literal["whole", "term"]


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Which part of a tensor a rank has: rows, of matrices also columns; None: all."""

    source: str
    rows: Range | None = None
    columns: Range | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's Program, and where its weights are in the whole one's."""

    program: Program
    parts: Mapping[str, WeightPart]
    """By the names of this program's weights; what is not there is whole."""


def shard_program(program: Program, rank: int, size: int) -> Shard:
    """What rank `rank` of `size` computes.

    Raises:
        InvalidConfig: heads or widths that cannot be dealt out to so many; names them and the sizes that fit.
        UnsupportedModel: an encoder.
    """
    if program.is_encoder:
        raise UnsupportedModel("an encoder is not split over ranks: leave --tensor-parallel-size out")
    check_size(program, size)
    return _Sharding(program, rank, size).run()


def check_size(program: Program, size: int) -> None:
    """Raises InvalidConfig unless the heads, and what lies between an MLP's matrices, can be dealt out to `size`."""
    if size < 1:
        raise InvalidConfig(f"tensor_parallel_size is {size}; it must be at least 1", param="tensor_parallel_size")
    heads = {(op.num_heads, op.num_kv_heads) for op in program.ops if isinstance(op, Attention)}
    most = min((num_heads for num_heads, _ in heads), default=1)
    for num_heads, num_kv_heads in sorted(heads):
        if not _heads_fit(num_heads, num_kv_heads, size):
            fitting = [n for n in range(1, most + 1) if all(_heads_fit(*pair, n) for pair in heads)]
            raise InvalidConfig(
                f"tensor_parallel_size is {size}, and the model's attention has {num_heads} heads and {num_kv_heads} "
                f"key and value heads, which can not be dealt out evenly: give one of {', '.join(map(str, fitting))}",
                param="tensor_parallel_size",
            )
    narrowest = min((program.weights[op.gates[0]][0] for op in program.ops if isinstance(op, Experts)), default=size)
    if narrowest < size:
        raise InvalidConfig(
            f"tensor_parallel_size is {size}, and the model's experts are {narrowest} columns wide: give {narrowest} "
            "or less",
            param="tensor_parallel_size",
        )


def _heads_fit(num_heads: int, num_kv_heads: int, size: int) -> bool:
    """The heads of a rank must be of whole groups, or all of one group."""
    return num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)


def deal(units: int, size: int) -> Share:
    """Units to ranks: as many to each, and one more to the first ones; fewer than ranks: to several ranks each."""
    if units < size:
        return Share(units, tuple((at * units // size, at * units // size + 1) for at in range(size)))
    each, more = divmod(units, size)
    begins = [at * each + min(at, more) for at in range(size + 1)]
    return Share(units, tuple(pairwise(begins)))


@dataclass(slots=True)
class _Sharding:
    """One pass over the ops."""

    program: Program
    rank: int
    size: int
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parts: dict[str, WeightPart] = field(default_factory=dict)
    caches: list[CacheSpec] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    """Of the values made so far, by their names in the whole Program."""
    wholes: dict[str, str] = field(default_factory=dict)
    """Of values that were made whole again, the name of that."""
    widths: Mapping[str, int] = field(init=False)
    split: Mapping[str, Share] = field(init=False)
    tables: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.widths = self.program.widths() | self.program.widths(is_selected=True)
        self.split = _find_split(self.program, self.widths, self.size)
        self.tables = frozenset(op.table for op in self.program.ops if isinstance(op, Embed))

    def run(self) -> Shard:
        for op in self.program.ops:
            self.places[op.out] = self._add(op)
        program = replace(self.program, ops=tuple(self.ops), weights=self.weights, caches=tuple(self.caches))
        program.check()
        return Shard(program, self.parts)

    def _add(self, op: Op) -> Place:
        """Appends what a rank does for the op; where its result is."""
        match op:
            case Linear():
                return self._add_linear(op)
            case HeadLinear():
                return self._add_head_linear(op)
            case Attention():
                return self._add_attention(op)
            case Experts():
                return self._add_experts(op)
            case Mul() | Add():
                return self._add_pair(op)
            case Scale() | SelectRows():
                self.ops.append(op)
                return self.places[op.input]
            case Activation() | Rope() | Norm():
                return self._add_rowwise(op)
            case _:
                return self._add_whole(op)

    def _add_whole(self, op: Op) -> Place:
        """An op that needs the whole of what it reads."""
        renamed = {name: self._whole(name) for name in op.inputs}
        for name in op.weights:
            self._weight(name)
        self.ops.append(_rename_inputs(op, renamed))
        return "whole"

    def _add_rowwise(self, op: Activation | Rope | Norm) -> Place:
        """Works on columns, or on heads, each for itself; but not on terms."""
        place = self.places[op.input]
        if not isinstance(place, Share) or (isinstance(op, Norm) and op.over == "hidden"):
            return self._add_whole(op)
        for name in op.weights:
            self._weight(name)
        self.ops.append(op)
        return place

    def _add_pair(self, op: Mul | Add) -> Place:
        left, right = self.places[op.left], self.places[op.right]
        is_sum = isinstance(op, Add)
        if left == right and (left != "term" or is_sum):
            self.ops.append(op)
            return left
        if not is_sum and right == "whole" and (self.widths[op.right] == 1 or left == "term"):
            self.ops.append(op)
            return left
        return self._add_whole(op)

    def _add_linear(self, op: Linear) -> Place:
        share = self.split.get(op.out)
        if share is not None:
            rows = share.columns(self.rank, self.widths[op.out])
            weight = self._weight(op.weight, rows=rows)
            bias = None if op.bias is None else self._weight(op.bias, rows=rows)
            self.ops.append(replace(op, input=self._whole(op.input), weight=weight, bias=bias))
            return share
        place = self.places[op.input]
        if not isinstance(place, Share) or not place.is_dealt_once:
            return self._add_whole(op)
        columns = place.columns(self.rank, self.widths[op.input])
        weight = self._weight(op.weight, columns=columns)
        bias = None if op.bias is None or self.rank else self._weight(op.bias)
        self.ops.append(replace(op, weight=weight, bias=bias))
        return "term"

    def _add_head_linear(self, op: HeadLinear) -> Place:
        place = self.places[op.input]
        if not isinstance(place, Share):
            return self._add_whole(op)
        self.ops.append(replace(op, weight=self._weight(op.weight, rows=place.ranges[self.rank])))
        return place

    def _add_attention(self, op: Attention) -> Place:
        share, kv_share = deal(op.num_heads, self.size), deal(op.num_kv_heads, self.size)
        begin, end = kv_share.ranges[self.rank]
        q, k = self._share(op.q, share), self._share(op.k, kv_share)
        v = None if op.v is None else self._share(op.v, kv_share)
        cache_id = op.cache_id
        if cache_id is not None:
            self.caches.append(replace(self.program.caches[cache_id], num_kv_heads=end - begin))
        self.ops.append(replace(op, q=q, k=k, v=v, num_heads=op.num_heads // self.size, num_kv_heads=end - begin))
        return share

    def _add_experts(self, op: Experts) -> Place:
        inside = deal(self.program.weights[op.gates[0]][0], self.size).ranges[self.rank]
        for gate, up, down in zip(op.gates, op.ups, op.downs, strict=True):
            self._weight(gate, rows=inside)
            self._weight(up, rows=inside)
            self._weight(down, columns=inside)
        self.ops.append(replace(op, input=self._whole(op.input), routing=self._whole(op.routing)))
        return "term"

    def _whole(self, name: str) -> str:
        """The value's name where it is whole."""
        place = self.places[name]
        if place == "whole":
            return name
        if name not in self.wholes:
            self.wholes[name] = self._join(name, place)
        return self.wholes[name]

    def _join(self, name: str, place: Place) -> str:
        if not isinstance(place, Share):
            self.ops.append(AllReduce(out=f"{name}.reduced", input=name))
            return f"{name}.reduced"
        if not place.is_dealt_once:
            raise UnsupportedModel(f"{name} is on several of {self.size} ranks and is needed as a whole")
        ranges = (place.columns(rank, self.widths[name]) for rank in range(self.size))
        self.ops.append(
            AllGather(out=f"{name}.gathered", input=name, parts=tuple(end - begin for begin, end in ranges))
        )
        return f"{name}.gathered"

    def _share(self, name: str, share: Share) -> str:
        """The name of this rank's share of the value."""
        if self.places[name] == share:
            return name
        begin, end = share.columns(self.rank, self.widths[name])
        whole = self._whole(name)
        if end - begin == self.widths[name]:
            return whole
        self.ops.append(Columns(out=f"{name}.columns", input=whole, first=begin, width=end - begin))
        return f"{name}.columns"

    def _weight(self, name: str, *, rows: Range | None = None, columns: Range | None = None) -> str:
        """Declares a weight or a part of it; its name, which differs where a table of embeddings is split too."""
        shape, made = self.program.weights[name], name
        if rows is not None or columns is not None:
            made = f"{name}.part" if name in self.tables else name
            self.parts[made] = WeightPart(name, rows, columns)
        if rows is not None:
            shape = (rows[1] - rows[0], *shape[1:])
        if columns is not None:
            shape = (*shape[:-1], columns[1] - columns[0])
        self.weights[made] = shape
        return made


def _rename_inputs(op: Op, renamed: Mapping[str, str]) -> Op:
    """The op over the values' new names."""
    if all(old == new for old, new in renamed.items()):
        return op
    names = {key: getattr(op, key) for key in ("input", "left", "right", "routing", "parts") if hasattr(op, key)}
    changed = {
        key: tuple(renamed[part] for part in name) if isinstance(name, tuple) else renamed[name]
        for key, name in names.items()
    }
    return cast(Op, replace(cast(Any, op), **changed))


def _find_split(program: Program, widths: Mapping[str, int], size: int) -> Mapping[str, Share]:
    """The Linear ops that are split by rows of their matrix, by what they make."""
    makers = {op.out: op for op in program.ops}
    found: dict[str, Share] = {}
    for op in program.ops:
        match op:
            case Attention():
                found |= dict.fromkeys(_makers_of_heads(op.q, makers), deal(op.num_heads, size))
                kv_share = deal(op.num_kv_heads, size)
                for name in (op.k, op.v):
                    if name is not None and (kv_share.is_dealt_once or not _is_normed_whole(name, makers)):
                        found |= dict.fromkeys(_makers_of_heads(name, makers), kv_share)
            case Linear() if widths[op.input] >= size:
                inside = _inside_of_mlp(op.input, makers)
                found |= dict.fromkeys(inside, deal(widths[op.input], size))
            case Logits() if isinstance(makers[op.input], Linear) and widths[op.input] >= size:
                found[op.input] = deal(widths[op.input], size)
    return found


def _makers_of_heads(name: str, makers: Mapping[str, Op]) -> list[str]:
    """The Linear behind norms, positions and matrices of heads, if that is where the value comes from."""
    op = makers[name]
    if isinstance(op, Linear):
        return [name]
    return _makers_of_heads(op.input, makers) if isinstance(op, Norm | Rope | HeadLinear) else []


def _is_normed_whole(name: str, makers: Mapping[str, Op]) -> bool:
    """Whether all heads of a value are normalised together."""
    op = makers[name]
    if isinstance(op, Norm) and op.over == "hidden":
        return True
    return isinstance(op, Norm | Rope) and _is_normed_whole(op.input, makers)


def _inside_of_mlp(name: str, makers: Mapping[str, Op]) -> list[str]:
    """The Linear ops that an activated value is made of; none where it is no such value."""
    op = makers[name]
    if isinstance(op, Activation) and isinstance(makers[op.input], Linear):
        return [op.input]
    if isinstance(op, Mul):
        sides = [[side] if isinstance(makers[side], Linear) else _inside_of_mlp(side, makers) for side in op.inputs]
        has_activation = any(not isinstance(makers[side], Linear) for side in op.inputs)
        return [*sides[0], *sides[1]] if all(sides) and has_activation else []
    return []
