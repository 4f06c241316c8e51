"""How long a worker may make no progress: the stall time-out, or several times what its steps are known to take.

StallWatch looks whether it makes some."""

from collections.abc import Callable, Iterable, Mapping

from headway.core.output import Usage
from headway.observe.clock import Clock, Timer

_LATE_TIMER_S = 5.0
"""A timer that comes later than this says that we were stopped ourselves, not that the worker was."""
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


class StallWatch:
    """Of one worker, from begin() to end(), while it owes something.

    Args:
        limit_s: how long it may say nothing, now.
        has_work: whether it has something to do at all.
        on_stall: called with that limit where it was over; it is looked at no more.
    """

    def __init__(
        self,
        clock: Clock,
        limit_s: Callable[[], float],
        has_work: Callable[[], bool],
        on_stall: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._has_work = has_work
        self._on_stall = on_stall
        self._progress_at = clock.now()
        self._timer: Timer | None = None

    def note_progress(self) -> None:
        """The worker has said something, or has something to do from now on."""
        self._progress_at = self._clock.now()

    def begin(self) -> None:
        """It owes something; again: nothing."""
        if self._timer is None:
            self._start(self._progress_at)

    def end(self) -> None:
        """It owes nothing; again: nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def follow(self, *, owes: bool) -> None:
        """Begins or ends, as it owes something now or not; from when it begins it is given its time."""
        if not owes:
            self.end()
        elif self._timer is None:
            self.note_progress()
            self.begin()

    def _start(self, since: float) -> None:
        due = since + self._limit_s()
        self._timer = self._clock.call_at(due, lambda: self._check(due))

    def _check(self, due: float) -> None:
        now, limit_s = self._clock.now(), self._limit_s()
        if not self._has_work() or now - due > _LATE_TIMER_S:
            self._start(now)
        elif now - self._progress_at < limit_s:
            self._start(self._progress_at)
        else:
            self._on_stall(limit_s)
