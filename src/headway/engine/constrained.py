"""ConstrainedOutput: the output of one constrained sequence: how it grows, what of it is told, and how it ends.

Tokens that follow without a choice are appended as soon as they are known, and computed in the next step as a run. They
are told at once, or, where log-probabilities are asked for, with the step that tells these: the logits of the token
before. An output that ends with such tokens then ends with that step, and what it samples is not used.
"""

from dataclasses import dataclass
from typing import NamedTuple

import llguidance

import headway_wire as wire
from headway.core.output import FinishReason
from headway.core.sequence import Sequence
from headway.engine.compiled_grammar import SLOW_MASK_S
from headway.engine.constraint import OutputConstraint, Taken
from headway.engine.endings import ending_of_token
from headway.errors import InvariantBroken
from headway.executor.base import Int32


@dataclass(frozen=True, slots=True)
class Ending:
    """How an output ends."""

    reason: FinishReason
    stop_token: int | None = None


class Mask(NamedTuple):
    """Which tokens may come next, a bit each."""

    words: Int32
    address: int
    """Of the first word: what numpy takes microseconds to tell."""


class Growth(NamedTuple):
    """What came of a step."""

    token_ids: list[int]
    """Told now."""
    num_forced: int
    """Of them."""
    logprobs: list[wire.TokenLogprobs] | None
    ending: Ending | None
    """With these tokens the output ends."""
    is_used: bool = True
    """The token that was sampled is in the output."""
    rewritten: int | None = None
    """The sequence's tokens from here on are others than the one that was sampled, or more."""


class ConstrainedOutput:
    """Of one sequence. Made before it is, for what it begins with is a part of its tokens.

    Args:
        first: what the output begins with.
        tells_logprobs: they are asked for.
    """

    def __init__(self, constraint: OutputConstraint, first: Taken, *, tells_logprobs: bool) -> None:
        self.constraint = constraint
        self.is_at_end = False
        """Only end tokens may come next, although the request wants none yet."""
        self.mask_s = constraint.compiled.mask_s
        """Processor time that its last mask took."""
        self._mask_ahead: Int32 | None = None
        """Of the next token; made before the step that needs it."""
        self._first = first
        self._untold: list[bool] = []
        """Of each token that is not told: whether it was forced."""
        self._logprobs: list[wire.TokenLogprobs] | None = [] if tells_logprobs else None
        """Those of the first of these tokens."""
        self._ending: Ending | None = None
        """How it ends once all is told."""

    @property
    def matcher(self) -> llguidance.LLMatcher:
        """Whose mask the next token is chosen under."""
        if self.constraint.matcher is None:
            raise InvariantBroken("there is no mask where no grammar holds")
        return self.constraint.matcher

    @property
    def needs_mask(self) -> bool:
        """Whether the next token is chosen under a mask; where the output has ended, it is not used."""
        return self._ending is None and self.constraint.needs_mask

    @property
    def is_slow(self) -> bool:
        """Its masks take so long that no step may wait for them (late_masks)."""
        return self.mask_s > SLOW_MASK_S

    def note_mask(self, mask_s: float, ahead: Int32 | None = None) -> None:
        """A mask was made, in so many seconds of processor time; `ahead`: before its step, which shall take it."""
        self.mask_s = mask_s
        self._mask_ahead = ahead

    def take_mask(self) -> Int32 | None:
        """The mask of the next token, if it is there already; once."""
        ahead, self._mask_ahead = self._mask_ahead, None
        return ahead

    def begin(self, sequence: Sequence) -> None:
        """Appends what the output begins with to a sequence that is new."""
        if self._first.token_ids or self._first.is_complete:
            sequence.token_ids = list(sequence.token_ids)  # until now that of all choices
            self._append(sequence, self._first)

    def score(self, logprobs: list[wire.TokenLogprobs]) -> None:
        """Takes the log-probabilities of the next tokens that were forced."""
        if self._logprobs is not None:
            self._logprobs += logprobs

    def grow(self, sequence: Sequence, token_id: int, logprobs: list[wire.TokenLogprobs] | None) -> Growth:
        """Takes a sampled token, and its log-probabilities where they are asked for.

        Raises InvalidRequest where the grammar cannot be followed any further.
        """
        if self._ending is None and len(sequence.token_ids) >= sequence.max_total_tokens:
            self._ending = Ending("length")
        if self._ending is not None:
            return self._tell(sequence, is_used=False)
        start = len(sequence.token_ids)
        is_end = token_id in sequence.end_token_ids
        taken = Taken([token_id], True, True) if is_end else self.constraint.accept(token_id)
        if taken == ([token_id], True, False) and self._tells_at_once and start + 1 < sequence.max_total_tokens:
            sequence.token_ids.append(token_id)  # nearly all tokens: what is below comes to the same
            return Growth(taken.token_ids, 0, None, None)
        if self._logprobs is not None and taken.is_sampled and logprobs:
            self._logprobs += logprobs
        self._append(sequence, taken)
        is_rewritten = not taken.is_sampled or len(sequence.token_ids) > start + 1
        return self._tell(sequence, is_used=True, rewritten=start if is_rewritten else None)

    @property
    def _tells_at_once(self) -> bool:
        """Whether a token is told with the step that it comes with: nothing waits before it."""
        return self._logprobs is None and not self._untold

    def _append(self, sequence: Sequence, taken: Taken) -> None:
        """Tokens as far as they fit, and to the first that ends the output."""
        token_ids, ends = sequence.token_ids, sequence.end_token_ids
        room = taken.token_ids[: sequence.max_total_tokens - len(token_ids)]
        end = next((place + 1 for place, token_id in enumerate(room) if token_id in ends), None)
        added = room[:end]
        token_ids += added
        self._untold += [False, *[True] * (len(added) - 1)] if taken.is_sampled else [True] * len(added)
        if end is not None:
            self._ending = Ending(*ending_of_token(sequence, added[-1]))
        elif taken.is_complete and len(added) == len(taken.token_ids):
            self._ending = Ending("stop")
        elif len(token_ids) >= sequence.max_total_tokens:
            self._ending = Ending("length")
        num_unscored = len(added) - taken.is_sampled
        if self._logprobs is not None and num_unscored > 0:
            _ask_for_scores(sequence, num_unscored)

    def _tell(self, sequence: Sequence, *, is_used: bool, rewritten: int | None = None) -> Growth:
        """What can be told now, and the end if nothing is left."""
        logprobs = self._logprobs
        num_told = len(self._untold) if logprobs is None else min(len(logprobs), len(self._untold))
        first = len(sequence.token_ids) - len(self._untold)
        growth = Growth(
            token_ids=sequence.token_ids[first : first + num_told],
            num_forced=sum(self._untold[:num_told]),
            logprobs=None if logprobs is None else logprobs[:num_told],
            ending=self._ending if num_told == len(self._untold) else None,
            is_used=is_used,
            rewritten=rewritten,
        )
        del self._untold[:num_told]
        if logprobs is not None:
            del logprobs[:num_told]
        return growth


def _ask_for_scores(sequence: Sequence, num_unscored: int) -> None:
    """The last tokens' log-probabilities are to be told, behind those of the prompt that still are."""
    if sequence.is_scored:
        sequence.num_scored_tokens = len(sequence.token_ids) - num_unscored
        sequence.is_scored = False
    sequence.num_to_score = len(sequence.token_ids)
