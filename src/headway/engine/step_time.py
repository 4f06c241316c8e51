"""StepTime: how long steps of this model may take, for whoever watches that its process does not stall.

A token costs its products with the weights, and attention to each position before it. The second grows with the
context: behind a long one it is many times the first.
"""

from headway.core.step import StepPlan
from headway.model.ops import Attention
from headway.model.program import Program


class StepTime:
    """Owned by an engine's loop.

    Args:
        max_tokens: of a step, at most.
    """

    def __init__(self, max_tokens: int) -> None:
        self.position_cost = 0.0
        """Of position_cost(), where the engine's Program is known."""
        self._max_tokens = max_tokens
        self._num_measured = 0
        self._token_s = 0.0

    def note(self, num_tokens: int, seconds: float, mean_context: float = 0.0) -> None:
        """A step of so many tokens, each behind so many positions, took so long. Of steps, the largest tells most of
        what a larger one will take."""
        if num_tokens >= max(1, self._num_measured):
            self._num_measured = num_tokens
            self._token_s = seconds / (num_tokens * (1.0 + self.position_cost * mean_context))

    def note_plan(self, plan: StepPlan, seconds: float) -> None:
        """A step by this plan took so long; call it before what was computed is counted."""
        num_tokens = plan.total_tokens
        if num_tokens >= max(1, self._num_measured):
            pairs = zip(plan.sequences, plan.num_tokens, strict=True)
            contexts = sum(num * (sequence.num_computed_tokens + (num + 1) / 2) for sequence, num in pairs)
            self.note(num_tokens, seconds, contexts / num_tokens)

    def values(self) -> dict[str, float]:
        """Gauges for Stats: step_token_s (seconds a token, without attention), step_position_cost, step_max_tokens."""
        return {
            "step_token_s": self._token_s,
            "step_position_cost": self.position_cost,
            "step_max_tokens": float(self._max_tokens),
        }


def position_cost(program: Program) -> float:
    """What attention to one position costs of what the products of a token with the weights do, in multiplications."""
    attention = sum(op.num_heads * (op.qk_dim + op.v_dim) for op in program.ops if isinstance(op, Attention))
    return attention / program.num_active_weights
