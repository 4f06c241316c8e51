"""StepTime: how long steps of this model may take, for whoever watches that its process does not stall."""


class StepTime:
    """Owned by an engine's loop.

    Args:
        max_tokens: of a step, at most.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_measured = 0
        self._token_s = 0.0

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long. Of steps, the largest tells most of what a larger one will take."""
        if num_tokens >= max(1, self._num_measured):
            self._num_measured = num_tokens
            self._token_s = seconds / num_tokens

    def values(self) -> dict[str, float]:
        """Gauges for Stats: step_token_s (seconds a token), step_max_tokens."""
        return {"step_token_s": self._token_s, "step_max_tokens": float(self._max_tokens)}
