"""Bounds that executors keep and the planner charges: here, because both need the same numbers."""

HEADS_AT_ONCE = 16
"""Query heads of one kv head that the native attention takes together, where there are more: each part is a piece of
work of its own, and keys that are read once serve enough of them."""
MAX_ATTENTION_SCORES = 16 * 1024 * 1024
"""Query rows x context tokens of one attention call: bounds its mask (64 MiB in float32)."""
MAX_GATHERED_TOKENS = 64 * 1024
"""Cached tokens that one attention call gathers, unless a single sequence has more."""
MAX_GATHERED_ON_GPU = 256 * 1024
"""The same on a GPU, where calls cost more than bytes."""


def head_parts(num_heads: int, num_kv_heads: int) -> int:
    """Into how many equal parts the query heads of each kv head are divided."""
    group = num_heads // num_kv_heads
    return group // HEADS_AT_ONCE if group % HEADS_AT_ONCE == 0 else 1
