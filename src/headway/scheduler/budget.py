"""StepBudget: what is left of a step for those that catch up and those that start."""

from dataclasses import dataclass

from headway.core.sequence import Sequence


@dataclass(slots=True)
class StepBudget:
    """Tokens left in a step for those that catch up, and rows of logits: one a sequence, or one a token of a prompt
    whose log-probabilities are to be told. Such a prompt is always computed in chunks, and leaves rows to others."""

    num_left: int
    num_rows_left: int
    is_chunked: bool
    is_untouched: bool = True

    def grant(self, sequence: Sequence) -> int:
        """How many of its missing tokens a sequence may compute now."""
        num_missing = sequence.num_missing_tokens
        if self.num_rows_left < 1:
            return 0
        if not sequence.is_scored:
            return min(num_missing, self.num_left, -(-self.num_rows_left // 2))
        if self.is_chunked:
            return min(num_missing, self.num_left)
        return num_missing if num_missing <= self.num_left or self.is_untouched else 0

    def spend(self, sequence: Sequence, num_tokens: int) -> None:
        """Takes what was granted."""
        self.num_left = max(0, self.num_left - num_tokens)
        self.num_rows_left -= 1 if sequence.is_scored else num_tokens
        self.is_untouched = False
