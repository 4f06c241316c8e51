"""What goes first, and who gives way: pure objects over what is known of a sequence. The scheduler does not know which
one it has.

A policy gives each sequence its place as it enters a queue: smallest first. Who waits has to get on, whatever keeps
coming, so all but first come, first served let a sequence age: what it lacks it makes up by waiting. Ageing is linear
and the same for all, so it is part of the place (lack + arrival time) and no queue has to be sorted again as time goes.

    fcfs      arrival
    priority  the request's priority, lower first; `ageing_s` of waiting are worth 1
    sjf       the work that is left, least first; `ageing_s` of waiting are worth 1,000 tokens of it
    fair      the tokens that its tenant was served, fewest first; `ageing_s` of waiting are worth 1,000 of them
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar, Protocol

from headway.config import SchedulingPolicy
from headway.core.sequence import Order, Sequence
from headway.errors import InvalidConfig

AGEING_TOKENS = 1000
"""Tokens of work, or of service, that a wait of `ageing_s` makes up for."""
PROMPT_TOKEN_WORK = 0.125
"""What computing a known token costs of what a new one does: they are computed many at a time."""


class Policy(Protocol):
    """In which order sequences get on."""

    is_by_tenant: ClassVar[bool]
    """Whether starting() wants to know what tenants were served."""

    def place(self, sequence: Sequence) -> Order:
        """Its place in a queue, when it enters one; no two sequences have the same."""
        ...

    def starting(
        self, waiting: Items[Sequence], running: Items[Sequence], served: Mapping[str, int]
    ) -> Iterable[Sequence]:
        """The order in which waiting sequences start now. Both queues are sorted by their places.

        Args:
            served: tokens by tenant, the past of who left included.
        """
        ...


class _ByPlace:
    """Sequences start in the order of their places."""

    is_by_tenant: ClassVar[bool] = False

    def starting(
        self, waiting: Items[Sequence], running: Items[Sequence], served: Mapping[str, int]
    ) -> Iterable[Sequence]:
        """As they wait."""
        return waiting


class FirstCome(_ByPlace):
    """First come, first served. A preempted sequence keeps its place."""

    def place(self, sequence: Sequence) -> Order:
        """Its arrival."""
        return (sequence.arrival,)


@dataclass(frozen=True, slots=True)
class ByPriority(_ByPlace):
    """The request's priority, lower first, as in vLLM."""

    ageing_s: float

    def place(self, sequence: Sequence) -> Order:
        """The second at which a request of priority 0 would have had to come for the same place."""
        return (sequence.arrival_s + self.ageing_s * sequence.priority, sequence.arrival)


@dataclass(frozen=True, slots=True)
class ShortestFirst(_ByPlace):
    """The least work that is left: its known tokens to compute, and those that it may still make (max_tokens)."""

    ageing_s: float

    def place(self, sequence: Sequence) -> Order:
        """The second at which a request without any work would have had to come for the same place."""
        num_new = sequence.max_total_tokens - len(sequence.token_ids)
        work = num_new + PROMPT_TOKEN_WORK * sequence.num_missing_tokens
        return (sequence.arrival_s + self.ageing_s * work / AGEING_TOKENS, sequence.arrival)


@dataclass(frozen=True, slots=True)
class FairShare:
    """Tenants are served the same number of tokens; among a tenant's own, first come, first served.

    After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): who was served least starts next, and
    what a sequence will need to catch up counts as served when it starts (ledger.py counts the rest).
    """

    ageing_s: float
    is_by_tenant: ClassVar[bool] = True

    def place(self, sequence: Sequence) -> Order:
        """Its arrival."""
        return (sequence.arrival,)

    def starting(
        self, waiting: Items[Sequence], running: Items[Sequence], served: Mapping[str, int]
    ) -> Iterator[Sequence]:
        """The first of the tenant who was served least, as if each that is taken from here does start."""
        queues: dict[str, list[Sequence]] = {}
        for sequence in waiting:
            queues.setdefault(sequence.tenant, []).append(sequence)
        levels = {tenant: served.get(tenant, 0) for tenant in queues}
        for sequence in running:
            if sequence.tenant in levels:
                levels[sequence.tenant] += sequence.num_missing_tokens

        def entry(tenant: str, index: int) -> tuple[float, int, str, int]:
            first = queues[tenant][index]
            level = levels[tenant] + AGEING_TOKENS / self.ageing_s * first.arrival_s
            return (level, first.arrival, tenant, index)

        line = [entry(tenant, 0) for tenant in queues]
        heapq.heapify(line)
        while line:
            _, _, tenant, index = heapq.heappop(line)
            sequence = queues[tenant][index]
            yield sequence
            levels[tenant] += sequence.num_missing_tokens
            if index + 1 < len(queues[tenant]):
                heapq.heappush(line, entry(tenant, index + 1))


def make_policy(name: SchedulingPolicy, ageing_s: float) -> Policy:
    """The policy of that name. Raises InvalidConfig."""
    if not 0 < ageing_s < float("inf"):
        raise InvalidConfig(
            f"scheduling_ageing_s is {ageing_s}; it must be over 0 and finite: with no ageing a request could wait for "
            "ever",
            param="scheduling_ageing_s",
        )
    match name:
        case "fcfs":
            return FirstCome()
        case "priority":
            return ByPriority(ageing_s)
        case "sjf":
            return ShortestFirst(ageing_s)
        case "fair":
            return FairShare(ageing_s)


def choose_victim(running: Items[Sequence], planned: Items[Sequence], sequence: Sequence) -> Sequence | None:
    """Whom to preempt so that `sequence` gets a block; None: nobody, it waits for those of the plan to end.

    `running` is in order. Never one of the plan, and never one that goes before `sequence` unless it is held: so the
    first that is not held always gets on, and two sequences cannot take each other's blocks in turn.

    1. The last of those that are held: they would not use their blocks now.
    2. The last of those behind `sequence`.
    """
    taken = set(planned)
    for candidate in reversed(running):  # 1
        if candidate.is_held and candidate is not sequence and candidate not in taken:
            return candidate
    for candidate in reversed(running):  # 2
        if candidate.order <= sequence.order:
            return None
        if candidate not in taken:
            return candidate
    return None
