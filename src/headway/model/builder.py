"""Builder: a Program being written, from a ModelShape, by an architecture file and the parts that it is composed of."""

from dataclasses import dataclass, field

from headway.checkpoint.shape import ModelShape
from headway.model.ops import Op
from headway.model.program import CacheSpec, Program
from headway.model.rope import rope_kind

MAX_POSITION = 2**31 - 1
"""Positions are int32."""


@dataclass(slots=True)
class Builder:
    """Ops, weights and caches so far. `max_model_len` only chooses among rope frequencies."""

    shape: ModelShape
    max_model_len: int
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, tuple[int, ...]] = field(default_factory=dict)
    caches: list[CacheSpec] = field(default_factory=list)

    def add(self, op: Op) -> str:
        """Appends an op; its output's name."""
        self.ops.append(op)
        return op.out

    def weight(self, name: str, *shape: int) -> str:
        """Declares a weight, once or again with the same shape; its name."""
        self.weights[name] = shape
        return name

    def build(self) -> Program:
        """The checked Program."""
        program = Program(
            architecture=self.shape.architecture,
            ops=tuple(self.ops),
            weights=self.weights,
            caches=tuple(self.caches),
            vocab_size=self.shape.vocab_size,
            hidden_size=self.shape.hidden_size,
            max_position=longest_context(self.shape, self.max_model_len),
        )
        program.check()
        return program


def longest_context(shape: ModelShape, max_model_len: int) -> int:
    """Positions that the model can hold: its own number; with YaRN what it is stretched to; with dynamic scaling as far
    as max_model_len asks, up to the factor."""
    if shape.rope is None:
        return shape.max_position
    scaling = shape.rope.scaling
    factor = float(scaling.get("factor") or 1.0)
    match rope_kind(scaling):
        case "yarn":
            original = scaling.get("original_max_position_embeddings") or shape.max_position
            return max(shape.max_position, int(min(original * factor, MAX_POSITION)))
        case "dynamic":
            return max(shape.max_position, int(min(max_model_len, shape.max_position * factor)))
        case _:
            return shape.max_position
