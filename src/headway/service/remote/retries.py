"""How long to wait before a call that failed is made again: a growing time with full jitter.

Source: AWS Architecture Blog, Exponential Backoff And Jitter (2015): "full jitter".
"""

BASE_DELAY_S = 0.2
MAX_DELAY_S = 5.0


def retry_delay_s(num_failed: int, random: float, retry_after_s: float | None = None) -> float | None:
    """Seconds to wait after the `num_failed`-th failure; None: the server wants a longer wait than MAX_DELAY_S, which
    is for the caller to decide.

    Args:
        random: 0 to 1.
        retry_after_s: what the server asked for.
    """
    wished = retry_after_s or 0.0
    if wished > MAX_DELAY_S:
        return None
    delay: float = random * min(MAX_DELAY_S, BASE_DELAY_S * 2.0 ** (num_failed - 1))
    return max(wished, delay)
