"""Cosines and sines of rotary positions as tables, one for all layers that turn alike. Angles are float32, as
transformers and torch_rope have them."""

from dataclasses import dataclass, field

import numpy as np

from headway.executor.base import Float32
from headway.model.ops import Rope


@dataclass(slots=True)
class RopeTables:
    """Tables of `num_positions` rows."""

    num_positions: int
    _tables: dict[tuple[tuple[float, ...], float], tuple[Float32, Float32]] = field(default_factory=dict)

    def table(self, rope: Rope) -> tuple[Float32, Float32]:
        """Cosines and sines times the magnitude, [num_positions, dims / 2] each."""
        key = rope.frequencies, rope.magnitude
        if key not in self._tables:
            positions = np.arange(self.num_positions, dtype=np.float32)[:, None]
            angles = positions * np.array(rope.frequencies, np.float32)
            magnitude = np.float32(rope.magnitude)
            self._tables[key] = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        return self._tables[key]
