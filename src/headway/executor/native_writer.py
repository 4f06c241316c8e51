"""What lowering an op needs: the values made so far, and the stages that are being written.

An op is written as a function that gives it to the native plan; it runs once every value has its place in the arena.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from headway import _native
from headway.errors import UnsupportedModel
from headway.executor.base import KVBuffers
from headway.executor.fuse import Fusion, GatedLinear, PlanOp
from headway.executor.native_layout import Layout, Prepared, View
from headway.executor.native_rope import RopeTables
from headway.executor.native_weights import MatrixLoader

NativeFusion = Fusion | Literal["gated_products", "row_stages", "in_place"]
ALL_NATIVE_FUSIONS: tuple[NativeFusion, ...] = (*get_args(Fusion), "gated_products", "row_stages", "in_place")

Cut = Literal["anywhere", "tiles", "blocks"]
"""Where a stage's rows may be cut: prepared rows lie in tiles, and two threads never write one block of the cache."""
Emit = Callable[[_native.Plan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """What a plan is made for: steps that exceed it are refused."""

    max_tokens: int
    max_selected: int
    """Rows of logits."""
    max_seqs: int
    max_context: int
    """Tokens of a sequence."""


@dataclass(slots=True)
class Stage:
    """Ops between two meetings of the threads."""

    is_rows: bool
    """All work row by row; else it is one product or one attention."""
    is_selected: bool
    cut: Cut
    emits: list[Emit] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    """Indexes of the ops that it runs, or runs a part of."""


@dataclass(slots=True, kw_only=True)
class PlanWriter:
    """A plan being written; lowering functions add to it."""

    loader: MatrixLoader
    kv: KVBuffers
    limits: PlanLimits
    vocab_size: int
    logits_source: str
    """The value that becomes logits."""
    fusions: Collection[NativeFusion]
    layout: Layout
    ropes: RopeTables
    last_use: Mapping[str, int]
    """Of each value, the index of the last op that reads it."""
    readers: Mapping[str, frozenset[bool]]
    """Which kinds of matrices multiply each value: True for bf16."""
    at: int = 0
    """Index of the op that is being lowered."""
    stages: list[Stage] = field(default_factory=list)
    values: dict[str, View] = field(default_factory=dict)
    last_hidden: View | None = None
    _prepared: dict[str, Prepared] = field(default_factory=dict)

    def may_overwrite(self, name: str) -> bool:
        """Nothing reads this input of the current op after it."""
        return self.last_use[name] == self.at and "in_place" in self.fusions

    def new(self, name: str, width: int, *, like: str | None = None) -> View:
        """A value in memory of its own, with as many rows as `like`; None: one for each token."""
        is_selected = self.values[like].is_selected if like is not None else False
        self.values[name] = self.layout.new(width, is_selected=is_selected)
        return self.values[name]

    def over_or_new(self, name: str, source: str, *, is_dense: bool = False) -> View:
        """A value of the shape of `source`, in its place where that may be overwritten; else dense if that is asked."""
        view = self.values[source]
        if not self.may_overwrite(source):
            view = self.layout.new(view.width, is_selected=view.is_selected, is_dense=is_dense)
        self.values[name] = view
        return view

    def row_op(self, emit: Emit, *used: View | Prepared, is_selected: bool, cut: Cut = "anywhere") -> None:
        """Adds an op that works row by row, to the last stage if that can take it."""
        stage = self.stages[-1] if self.stages else None
        if stage is None or not self._takes(stage, is_selected, cut):
            stage = Stage(is_rows=True, is_selected=is_selected, cut=cut)
            self.stages.append(stage)
        if cut != "anywhere":
            stage.cut = cut
        stage.emits.append(emit)
        stage.ops.append(self.at)
        self.layout.use(len(self.stages) - 1, *used)

    def _takes(self, stage: Stage, is_selected: bool, cut: Cut) -> bool:
        fits = stage.is_rows and stage.is_selected == is_selected and {stage.cut, cut} != {"tiles", "blocks"}
        return fits and "row_stages" in self.fusions

    def own_stage(self, emit: Emit, *used: View | Prepared) -> None:
        """Adds a product or an attention."""
        self.stages.append(Stage(is_rows=False, is_selected=False, cut="anywhere", emits=[emit], ops=[self.at]))
        self.layout.use(len(self.stages) - 1, *used)

    def prepare(self, name: str) -> Prepared:
        """The value made ready for the products that read it; once, however many do."""
        if name not in self._prepared:
            source, layout, kinds = self.values[name], self.layout, self.readers[name]
            made = layout.new_prepared(
                source.width, is_selected=source.is_selected, has_q=False in kinds, has_wide=True in kinds
            )

            def emit(plan: _native.Plan) -> None:
                plan.prepare(
                    is_selected=source.is_selected, input=layout.place(source), out=layout.place_prepared(made)
                )

            self._prepared[name] = made
            self.row_op(emit, source, made, is_selected=source.is_selected, cut="tiles")
        return self._prepared[name]


def refuse(op: PlanOp | GatedLinear, why: str = "") -> UnsupportedModel:
    """The error for an op that is not run."""
    return UnsupportedModel(f"{type(op).__name__}{why} is not supported by the native executor: take --executor torch")
