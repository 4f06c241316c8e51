"""Sequence: one choice of a request while it runs, as plain numbers. A request with n = 2 is two of them.

Who writes what: the engine makes it, appends to `token_ids` and counts `num_scored_tokens`; the scheduler owns
`status`, `row`, `order`, `num_computed_tokens` and `num_served_tokens`; the KV cache owns `num_slots` and what its
first match says (`num_cached_tokens`).
"""

from dataclasses import dataclass, field
from enum import Enum

import headway_wire as wire

Order = tuple[float, ...]
"""A place in a queue: smallest first."""


class SequenceStatus(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    """Has no row and no blocks: not started yet, or preempted."""
    RUNNING = "running"
    FINISHED = "finished"
    """Its terminal event is made; it is in no list any more."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice of a request. Compared and hashed by identity.

    A sequence has no phase: each step brings `num_computed_tokens` nearer to `len(token_ids)`; once they meet, the
    next token is sampled and appended.
    """

    request_id: str
    choice: int
    arrival: int
    """Unique, growing: the order in which the engine made them."""
    arrival_s: float = 0.0
    """When that was, by the engine's clock."""
    token_ids: list[int]
    """Prompt, then output."""
    num_prompt_tokens: int
    max_total_tokens: int
    """Prompt and output together may not grow over this."""
    sampling: wire.Sampling = field(default_factory=wire.Sampling)
    seed: int = 0
    """64 bits; choice i draws its noise from (seed, i, output position)."""
    end_token_ids: frozenset[int] = frozenset()
    """Any of them ends the choice."""
    priority: int = 0
    """Lower goes first, where the scheduler's policy asks for it."""
    tenant: str = ""
    """Whose it is, where the policy shares among tenants."""
    cache_salt: str = ""
    """Prefixes are shared only among sequences of the same salt."""
    fork: "Fork | None" = None
    """Set while it shares an uncomputed prompt with other choices."""
    status: SequenceStatus = SequenceStatus.WAITING
    order: Order = ()
    """Its place in the queue that it is in."""
    row: int = -1
    """Its row in the persistent arrays while it runs, else -1."""
    num_computed_tokens: int = 0
    """Tokens whose K and V are in the cache."""
    num_slots: int = 0
    """Tokens that its blocks can hold."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held when it first started."""
    is_scored: bool = True
    """Nobody waits for log-probabilities of tokens that were not sampled: the prompt's, or forced ones."""
    num_scored_tokens: int = 1
    """Tokens, from the first, whose log-probability is told; the first has none. Counts while not is_scored."""
    num_to_score: int = 0
    """... and is to be told."""
    num_served_tokens: int = 0
    """The most that num_computed_tokens ever was, where its tenant is charged for it."""
    has_started: bool = False
    """It ran at least once."""
    num_preemptions: int = 0
    """How often it lost its blocks while it could have used them."""
    is_held: bool = False
    """Its reader is slow: it is not scheduled."""
    is_late: bool = False
    """What its next token may be is not known yet: it is not scheduled, and keeps what it has."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens that it has produced."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens whose K and V may be taken from the cache: the logits behind all later ones are wanted."""
        return (len(self.token_ids) if self.is_scored else self.num_scored_tokens) - 1

    @property
    def can_run(self) -> bool:
        """Whether it may be in the next step."""
        return not (self.is_held or self.is_late)

    def can_start(self) -> bool:
        """Whether it may leave the queue: it can run, and does not wait for a sibling to compute their prompt."""
        return self.can_run and (self.fork is None or self.fork.lets_start(self))


@dataclass(slots=True, eq=False)
class Fork:
    """Choices of one prompt: the first that is not finished computes it, the others then start from the prefix tree."""

    sequences: list[Sequence] = field(default_factory=list)
    is_prompt_computed: bool = False

    def lets_start(self, sequence: Sequence) -> bool:
        """Whether `sequence` may start now."""
        if self.is_prompt_computed:
            return True
        return next(s for s in self.sequences if s.status is not SequenceStatus.FINISHED) is sequence
