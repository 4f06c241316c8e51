"""What a door asks a service for where no tokens are wanted: tensors or a value in, tensors or a value out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import headway_wire as wire


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """One inference. Names, datatypes and shapes of tensors are checked where the model is known."""

    request_id: str
    model: str
    """An id, an alias, or id@version."""
    tensors: Sequence[wire.Tensor] = ()
    """Named inputs; empty: `value` is the input."""
    value: Any = None
    """JSON's types, and bytes of images that were fetched or decoded already."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    """Names of the output tensors that are wanted; empty: all."""
    timeout_s: float | None = None
    """None: the model's own."""
    depth: int = 0
    """How many ensembles it is a step of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    """The answer, in the form of the request: tensors to tensors, a value to a value."""

    model: str
    """The id."""
    version: str
    tensors: Sequence[wire.Tensor] = ()
    value: Any = None
    labels: Sequence[str] | None = None
    """Of a classifier: names of the last axis of its predictions."""
    load_phases: tuple[tuple[str, float], ...] = ()
    """Where this request waited for the model's load: its phases and their seconds."""
