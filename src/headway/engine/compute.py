"""How a step's arrays become tokens. make_computer chooses once, for an executor and a sampler; engine/runner calls it.

With the native executor it is one call that samples too (OneCall); with torch the executor gives logits and the sampler
takes them (LogitsAndSample).
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

import headway_wire as wire
from headway.engine.batch import BatchStep, Bool
from headway.engine.sampler import Sampler
from headway.executor.base import Executor, Float32, Int32, Sampled, SamplingExecutor

logger = logging.getLogger(__name__)


class TokenSampler(Protocol):
    """What is needed of engine.sampler.Sampler."""

    token_ids: Int32

    def set_row(
        self,
        row: int,
        sampling: wire.Sampling,
        *,
        seed: int,
        choice: int,
        end_token_ids: frozenset[int],
        num_prompt_tokens: int,
    ) -> None:
        """A sequence takes a row."""
        ...

    def set_given(self, row: int, num_given: int) -> None:
        """The row's first so many tokens are not sampled; only called where some behind its prompt are not."""
        ...

    def sample(self, logits: Float32, rows: Int32, num_tokens: Int32) -> Sampled:
        """One token a row."""
        ...


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step gave."""

    behind_is_finite: Bool  # [num_behind]
    sampled: Sampled | None = None
    """A row for each of BatchStep.sampled; None where there are none, or `alone` has them."""
    scored: Sampled | None = None
    """A row for each of BatchStep.scored, if there are any."""
    alone: dict[int, Sampled | Exception] = field(default_factory=dict)
    """Where sampling all at once failed: each of BatchStep.sampled by its index, alone."""


class StepComputer(Protocol):
    """Runs a step and samples. Raises what concerns the whole step."""

    def compute(self, step: BatchStep) -> Computed:
        """Blocks until the step is done."""
        ...


def make_computer(executor: Executor, sampler: TokenSampler) -> StepComputer:
    """One call, where the executor can sample and the sampler is the native one."""
    if isinstance(executor, SamplingExecutor) and isinstance(sampler, Sampler):
        return OneCall(executor, sampler)
    return LogitsAndSample(executor, sampler)


class OneCall:
    """A step with its sampling in one call. Tokens that are only caught up need no logits: their hidden row tells."""

    def __init__(self, executor: SamplingExecutor, sampler: Sampler) -> None:
        self._executor, self._sampler = executor, sampler

    def compute(self, step: BatchStep) -> Computed:
        """Runs the step and samples."""
        is_sampled, rows = step.is_sampled, step.arrays.logit_rows
        behind = rows[:0] if is_sampled is None else rows[~is_sampled]
        wanted, matrix_rows, num_tokens = rows if is_sampled is None else rows[is_sampled], step.rows, step.num_tokens
        if step.scored is not None:
            wanted = np.concatenate([wanted, step.scored.at])
            matrix_rows = np.concatenate([matrix_rows, step.scored.rows])
            num_tokens = np.concatenate([num_tokens, step.scored.num_tokens])
        made = self._sampler.make_sampled(matrix_rows)
        behind_is_finite = np.empty(len(behind), np.bool_)
        self._executor.execute_and_sample(
            step.arrays, wanted, behind, behind_is_finite, self._sampler.native, matrix_rows, num_tokens, made
        )
        if step.scored is None:
            return Computed(behind_is_finite, made)
        num_sampled = len(step.rows)
        return Computed(behind_is_finite, made.part(slice(num_sampled)), made.part(slice(num_sampled, None)))


class LogitsAndSample:
    """Logits from the executor, tokens from the sampler. A row that cannot be sampled fails alone."""

    def __init__(self, executor: Executor, sampler: TokenSampler) -> None:
        self._executor, self._sampler = executor, sampler

    def compute(self, step: BatchStep) -> Computed:
        """Runs the step and samples."""
        if step.scored is None:
            return self._sample(self._executor.execute(step.arrays), step)
        num_seqs = len(step.arrays.logit_rows)
        logit_rows = np.concatenate([step.arrays.logit_rows, step.scored.at])
        logits = self._executor.execute(replace(step.arrays, logit_rows=logit_rows))
        scored = self._sampler.sample(logits[num_seqs:], step.scored.rows, step.scored.num_tokens)
        return replace(self._sample(logits[:num_seqs], step), scored=scored)

    def _sample(self, logits: Float32, step: BatchStep) -> Computed:
        behind_is_finite = np.empty(0, np.bool_)
        if step.is_sampled is not None:
            # One row tells it of the whole run: the last token attends to all of them.
            behind_is_finite = np.isfinite(logits[~step.is_sampled].max(axis=1))
            logits = _rows_of(logits, step.is_sampled)
        if not step.sampled:
            return Computed(behind_is_finite)
        try:
            return Computed(behind_is_finite, self._sampler.sample(logits, step.rows, step.num_tokens))
        except Exception:  # whose row it was shows when each is sampled alone, with the same result as together
            logger.exception("sampling a batch of %d failed; each is sampled alone", len(step.sampled))
            alone = {index: self._sample_alone(logits, step, index) for index in range(len(step.sampled))}
            return Computed(behind_is_finite, alone=alone)

    def _sample_alone(self, logits: Float32, step: BatchStep, index: int) -> Sampled | Exception:
        part = slice(index, index + 1)
        try:
            return self._sampler.sample(np.ascontiguousarray(logits[part]), step.rows[part], step.num_tokens[part])
        except Exception as error:  # this is the one
            return error


def _rows_of(logits: Float32, is_wanted: Bool) -> Float32:
    """Some rows; where they are the first ones, as they usually are, without a copy."""
    num_wanted = int(is_wanted.sum())
    return logits[:num_wanted] if is_wanted[:num_wanted].all() else logits[is_wanted]
