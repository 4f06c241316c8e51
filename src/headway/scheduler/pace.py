"""Pace: how many tokens may catch up in a step beside streams, so that none of these waits long for its next token.

A step of s streams and n tokens of prompts takes about a(s) + n * b. Both are measured as steps end: what a prompt
costs grows with its length, and machines differ by a factor of ten. What a sequence gets does not depend on how its
prompt was cut, so only time depends on this.

    streams alone   a follows the last steps without prompts, in proportion to their streams
    a dearer token  is believed at once, a cheaper one slowly: a step that is too long is felt, one that is short is not
"""

MIN_TOKENS = 16
"""Tokens that may always catch up: a prompt must get somewhere."""
MIN_SHARE = 0.5
"""Of the time of the streams alone, what catching up may always take: many streams must not starve a prompt."""
_FOLLOW = 0.3
_ASSUMED_TOKEN_S = 0.002
"""Before anything was measured."""


class Pace:
    """Owned by the engine's loop.

    Args:
        target_s: seconds that a step with streams should take at most; 0: as long as it takes.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._stream_s: float | None = None
        self._token_s: float | None = None

    def max_tokens(self, num_streams: int, limit: int) -> int:
        """Tokens that may catch up beside `num_streams` streams, at most `limit`."""
        if self._target_s <= 0 or num_streams == 0:
            return limit
        streams_s = num_streams * (self._stream_s or 0.0)
        left_s = max(self._target_s - streams_s, MIN_SHARE * streams_s)
        token_s = _ASSUMED_TOKEN_S if self._token_s is None else self._token_s
        return max(0, min(limit, max(MIN_TOKENS, int(left_s / token_s))))

    def note(self, num_streams: int, num_tokens: int, seconds: float) -> None:
        """A step of so many streams and tokens that caught up took so long."""
        if num_tokens == 0:
            if num_streams:
                self._stream_s = _follow(self._stream_s, seconds / num_streams)
            return
        token_s = max(0.0, seconds - num_streams * (self._stream_s or 0.0)) / num_tokens
        is_dearer = self._token_s is None or token_s > self._token_s
        self._token_s = max(token_s if is_dearer else _follow(self._token_s, token_s), 1e-9)


def _follow(before: float | None, value: float) -> float:
    return value if before is None else before + _FOLLOW * (value - before)
