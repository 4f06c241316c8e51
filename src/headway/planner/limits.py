"""Bounds that executors keep and the planner charges: here, because both need the same numbers."""

MAX_ATTENTION_SCORES = 16 * 1024 * 1024
"""Query rows x context tokens of one attention call: bounds its mask (64 MiB in float32)."""
MAX_GATHERED_TOKENS = 64 * 1024
"""Cached tokens that one attention call gathers, unless a single sequence has more."""
