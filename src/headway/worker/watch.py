"""How long a worker may make no progress: the stall time-out, or several times what its steps are known to take."""

from collections.abc import Iterable, Mapping

from headway.core.output import Usage

PATIENCE = 10.0
"""Times what a step is expected to take: a measured one tells of others within a factor of a few."""


def stall_limit_s(timeout_s: float, stats: Mapping[str, float], open_usages: Iterable[Usage]) -> float:
    """Seconds without a word after which the worker counts as stalled.

    Args:
        timeout_s: the configured one, never undercut.
        stats: the worker's; step_token_s, step_position_cost and step_max_tokens, where it tells them
            (engine/step_time).
        open_usages: of the choices of its open requests: no step computes more than all their tokens.
    """
    contexts = [usage.num_prompt_tokens + usage.num_output_tokens for usage in open_usages]
    num_tokens = min(stats.get("step_max_tokens", 0.0), sum(contexts))
    # As if each token came last in the longest.
    token_s = stats.get("step_token_s", 0.0) * (1.0 + stats.get("step_position_cost", 0.0) * max(contexts, default=0))
    return max(timeout_s, PATIENCE * token_s * num_tokens)
