"""How long a worker may make no progress: the stall time-out, or several times what its steps are known to take."""

from collections.abc import Iterable, Mapping

from headway.core.output import Usage

PATIENCE = 10.0
"""Times what a step is expected to take: later tokens of a long prompt cost several times its first ones."""


def stall_limit_s(timeout_s: float, stats: Mapping[str, float], open_usages: Iterable[Usage]) -> float:
    """Seconds without a word after which the worker counts as stalled.

    Args:
        timeout_s: the configured one, never undercut.
        stats: the worker's; step_token_s and step_max_tokens, where it tells them.
        open_usages: of the choices of its open requests: no step computes more than all their tokens.
    """
    num_open = sum(usage.num_prompt_tokens + usage.num_output_tokens for usage in open_usages)
    num_tokens = min(stats.get("step_max_tokens", 0.0), num_open)
    return max(timeout_s, PATIENCE * stats.get("step_token_s", 0.0) * num_tokens)
