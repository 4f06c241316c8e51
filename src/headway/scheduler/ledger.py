"""Ledger: how many tokens each tenant was served, for policies that share by it.

A token counts once, when it is first computed: what the prefix cache had costs nobody, and what a preempted sequence
computes again is not its tenant's fault. Who was away comes back with no less than the least that somebody present has:
being away is not saved up. When nobody is left all start from 0.
"""

from collections import Counter

from headway.core.sequence import Sequence
from headway.core.step import StepPlan

_MAX_ABSENT = 1000
"""Tenants without open sequences that are remembered, beside as many as are present."""


class Ledger:
    """Owned by the scheduler."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}
        """Tokens by tenant."""
        self._num_open: Counter[str] = Counter()

    def join(self, sequence: Sequence) -> None:
        """A sequence begins to wait for the first time."""
        tenant = sequence.tenant
        if tenant in self._num_open:
            self._num_open[tenant] += 1
            return
        least = self._least()
        self.served[tenant] = max(self.served.get(tenant, 0), least)
        self._num_open[tenant] = 1
        if len(self.served) > 2 * len(self._num_open) + _MAX_ABSENT:
            self._forget_absent(least)

    def leave(self, sequence: Sequence) -> None:
        """A sequence that joined has ended."""
        tenant = sequence.tenant
        self._num_open[tenant] -= 1
        if not self._num_open[tenant]:
            del self._num_open[tenant]
        if not self._num_open:
            self.served.clear()

    def note(self, plan: StepPlan) -> None:
        """The tokens of a plan are computed."""
        for sequence in plan.sequences:
            before = max(sequence.num_served_tokens, sequence.num_cached_tokens)
            if sequence.num_computed_tokens > before and sequence.tenant in self._num_open:
                self.served[sequence.tenant] += sequence.num_computed_tokens - before
                sequence.num_served_tokens = sequence.num_computed_tokens

    def _least(self) -> int:
        return min((self.served[tenant] for tenant in self._num_open), default=0)

    def _forget_absent(self, least: int) -> None:
        """Those that would come back with the least anyway; where that is not enough, all that are away."""
        kept = {t: num for t, num in self.served.items() if t in self._num_open or num > least}
        if len(kept) > 2 * len(self._num_open) + _MAX_ABSENT:
            kept = {t: num for t, num in kept.items() if t in self._num_open}
        self.served = kept
