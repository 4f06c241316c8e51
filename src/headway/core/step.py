"""StepPlan (scheduler to engine: which tokens of which sequences run) and StepResult (what came of it). No arrays."""

from dataclasses import dataclass, field
from typing import NamedTuple

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.errors import HeadwayError


class ScheduledSequence(NamedTuple):
    """A sequence in a plan: its next `num_tokens` uncomputed tokens run in this step."""

    sequence: Sequence
    num_tokens: int


class TableChange(NamedTuple):
    """Blocks of a running sequence that the engine's copy of its block table does not have yet."""

    sequence: Sequence
    start: int
    """Index of the first of them in the sequence's table."""
    block_ids: list[int]


@dataclass(slots=True)
class StepPlan:
    """One step. `sequences` and `num_tokens` run in parallel (no object a sequence a step is made for them)."""

    sequences: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_streams: int = 0
    """Of `sequences`: the first so many compute one token."""
    padding: list[Sequence] = field(default_factory=list)
    """Of the streams: those that have ended, and are computed on because their batch has not."""
    started: list[Sequence] = field(default_factory=list)
    """Of `sequences`: those that took their row in this step."""
    table_changes: list[TableChange] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    """Lost their row and blocks; they wait again, but for those that are in `over_limit` too."""
    over_limit: list[Sequence] = field(default_factory=list)
    """Preempted once more than they may be: the engine ends them with an error."""

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Takes a sequence into the step."""
        self.sequences.append(sequence)
        self.num_tokens.append(num_tokens)

    @property
    def scheduled(self) -> list[ScheduledSequence]:
        """The plan as pairs."""
        return [ScheduledSequence(*pair) for pair in zip(self.sequences, self.num_tokens, strict=True)]

    @property
    def total_tokens(self) -> int:
        """Tokens to compute."""
        return sum(self.num_tokens)

    def without(self, failed: set[Sequence]) -> "StepPlan":
        """The same step without some sequences."""
        kept = [pair for pair in self.scheduled if pair.sequence not in failed]
        return StepPlan(
            sequences=[pair.sequence for pair in kept],
            num_tokens=[pair.num_tokens for pair in kept],
            num_streams=sum(sequence not in failed for sequence in self.sequences[: self.num_streams]),
            padding=[sequence for sequence in self.padding if sequence not in failed],
            started=[sequence for sequence in self.started if sequence not in failed],
            table_changes=[change for change in self.table_changes if change.sequence not in failed],
            preempted=self.preempted,
            over_limit=self.over_limit,
        )


class TokenScores(NamedTuple):
    """Log-probabilities of a run of a sequence's tokens that were not sampled: all of its prompt, or none."""

    sequence: Sequence
    start: int
    """The first one's position in the sequence."""
    logprobs: list[wire.TokenLogprobs]


@dataclass(slots=True)
class StepResult:
    """What one executed step gave. The first three lists run in parallel."""

    sequences: list[Sequence] = field(default_factory=list)
    """Those that got a token; the others of the plan only caught up."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[list[wire.TokenLogprobs] | None] = field(default_factory=list)
    """One entry where the sequence asked for log-probabilities, else None."""
    scores: list[TokenScores] = field(default_factory=list)
    """Of those that asked for log-probabilities of tokens that were not sampled."""
    failures: list[tuple[Sequence, HeadwayError]] = field(default_factory=list)
    """Sequences of the plan that failed alone."""
