"""Runner: executes a StepPlan: batch arrays, then what compute.py makes of them. It acts on arrays only; what its
result means for the requests is the engine's business.

What fails in one sequence's part (its row cannot be set up, its logits are not finite, sampling its row raises) is in
StepResult.failures and leaves the others alone. What the executor raises is raised: it concerns the whole step.
"""

import logging

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.core.step import StepPlan, StepResult, TokenScores
from headway.engine.batch import Batch, BatchStep, ScoredRows
from headway.engine.compute import Computed, TokenSampler, make_computer
from headway.engine.constraint import is_constraining
from headway.engine.masks import MaskFiller
from headway.errors import HeadwayError, InternalError, NonFiniteLogits
from headway.executor.base import Executor, Sampled

logger = logging.getLogger(__name__)


class Runner:
    """Binds executor, sampler and the persistent arrays. Not thread-safe.

    Args:
        masks: of constrained sequences; None: there are none.
    """

    def __init__(
        self, executor: Executor, sampler: TokenSampler, *, block_size: int, masks: MaskFiller | None = None
    ) -> None:
        self._computer = make_computer(executor, sampler)
        self._sampler = sampler
        self._masks = masks
        self._batch = Batch(sampler.token_ids, block_size=block_size)

    def run(self, plan: StepPlan) -> StepResult:
        """Computes the step and samples. Raises what the executor raises; then no sequence of the plan has moved."""
        result = StepResult()
        if plan.started:
            plan = self._start_rows(plan, result)
        if plan.table_changes:
            self._batch.change_tables(plan.table_changes)
        if not plan.sequences:
            return result
        step = self._batch.make_step(plan)
        computed, unmasked = self._compute(step)
        self._fail_behind(step, computed, result)
        if step.scored is not None and computed.scored is not None:
            self._collect_scores(step.scored, computed.scored, result)
        if computed.sampled is not None and step.sampled:
            self._batch.append(step, computed.sampled.token_ids)
            self._collect(step.sampled, computed.sampled, result)
        for index, alone in computed.alone.items():
            self._collect_alone(step, index, alone, result)
        if unmasked:
            _fail_unmasked(unmasked, result)
        return result

    def rewrite(self, sequence: Sequence, start: int) -> None:
        """A running sequence's tokens from position `start` on are others than those that were sampled, or more."""
        self._batch.rewrite(sequence, start)
        self._tell_given(sequence)

    def close(self) -> None:
        """Ends the side thread."""
        if self._masks is not None:
            self._masks.close()

    def _compute(self, step: BatchStep) -> tuple[Computed, dict[Sequence, HeadwayError]]:
        """The step, with the masks of those that are sampled; and whose mask could not be made."""
        if self._masks is None:
            return self._computer.compute(step), {}
        self._masks.start(step.sampled)
        try:
            computed = self._computer.compute(step)
        finally:
            unmasked = self._masks.finish()
        return computed, unmasked

    def _tell_given(self, sequence: Sequence) -> None:
        """Log-probabilities of tokens behind the prompt that were not sampled are asked for."""
        if not sequence.is_scored and sequence.num_to_score > sequence.num_prompt_tokens:
            self._sampler.set_given(sequence.row, sequence.num_to_score)

    def _start_rows(self, plan: StepPlan, result: StepResult) -> StepPlan:
        """Fills the rows of new sequences; returns the plan without those that could not be."""
        failed: set[Sequence] = set()
        for sequence in plan.started:
            try:
                self._batch.start(sequence)
                self._sampler.set_row(
                    sequence.row,
                    sequence.sampling,
                    seed=sequence.seed,
                    choice=sequence.choice,
                    end_token_ids=sequence.end_token_ids,
                    num_prompt_tokens=sequence.num_prompt_tokens,
                )
                self._tell_given(sequence)
                if self._masks is not None:
                    self._masks.start_row(sequence.row)
            except Exception as error:  # one request's sampling must not end the others
                failed.add(sequence)
                result.failures.append((sequence, to_event_error(error, "setting up the sampling of this request")))
        return plan.without(failed) if failed else plan

    def _fail_behind(self, step: BatchStep, computed: Computed, result: StepResult) -> None:
        """Fails those whose last token of this step is not finite: no other may start from what they computed."""
        if not bool(computed.behind_is_finite.all()):
            for sequence, is_finite in zip(step.behind, computed.behind_is_finite.tolist(), strict=True):
                if not is_finite:
                    result.failures.append((sequence, _make_non_finite(sequence)))

    def _collect_scores(self, rows: ScoredRows, scored: Sampled, result: StepResult) -> None:
        """Adds log-probabilities of tokens that were not sampled; who has one that is not finite fails."""
        begin = 0
        for sequence, start, count in rows.runs:
            part, begin = scored.part(slice(begin, begin + count)), begin + count
            if not bool(part.is_finite.all()):
                result.failures.append((sequence, _make_non_finite(sequence)))
                continue
            sampling = sequence.sampling
            wanted = sampling.prompt_logprobs if start < sequence.num_prompt_tokens else sampling.logprobs
            num_top = wanted or 0
            columns = (
                part.logprobs.tolist(),
                part.top_ids[:, :num_top].tolist(),
                part.top_logprobs[:, :num_top].tolist(),
            )
            result.scores.append(TokenScores(sequence, start, list(map(wire.TokenLogprobs, *columns))))

    def _collect_alone(self, step: BatchStep, index: int, alone: Sampled | Exception, result: StepResult) -> None:
        part = slice(index, index + 1)
        if isinstance(alone, Exception):
            error = to_event_error(alone, "sampling this request's next token")
            result.failures.append((step.sampled[index], error))
            return
        one = BatchStep(step.arrays, step.sampled[part], step.rows[part], step.num_tokens[part])
        self._batch.append(one, alone.token_ids)
        self._collect(one.sampled, alone, result)

    def _collect(self, sequences: list[Sequence], sampled: Sampled, result: StepResult) -> None:
        """Adds sampled rows to the result."""
        token_ids: list[int] = sampled.token_ids.tolist()
        logprobs: list[list[wire.TokenLogprobs] | None] = [None] * len(sequences)
        for index, sequence in enumerate(sequences):
            if sequence.sampling.logprobs is not None:
                logprobs[index] = [_make_logprobs(sampled, index, sequence.sampling.logprobs)]
        if bool(sampled.is_finite.all()) and not result.sequences:
            result.sequences, result.token_ids, result.logprobs = sequences, token_ids, logprobs
            return
        for index, is_finite in enumerate(sampled.is_finite.tolist()):
            if is_finite:
                result.sequences.append(sequences[index])
                result.token_ids.append(token_ids[index])
                result.logprobs.append(logprobs[index])
            else:
                result.failures.append((sequences[index], _make_non_finite(sequences[index])))


def to_event_error(error: BaseException, doing: str) -> HeadwayError:
    """An exception as an error that a request can end with; what is not of our tree is logged and not shown."""
    if isinstance(error, HeadwayError):
        return error
    logger.error("%s failed", doing, exc_info=error)
    return InternalError(f"{doing} failed; the log of the server has the cause")


def _fail_unmasked(unmasked: dict[Sequence, HeadwayError], result: StepResult) -> None:
    """What was sampled of those means nothing."""
    kept = [index for index, sequence in enumerate(result.sequences) if sequence not in unmasked]
    result.sequences = [result.sequences[index] for index in kept]
    result.token_ids = [result.token_ids[index] for index in kept]
    result.logprobs = [result.logprobs[index] for index in kept]
    result.failures = [each for each in result.failures if each[0] not in unmasked]
    result.failures += unmasked.items()


def _make_non_finite(sequence: Sequence) -> NonFiniteLogits:
    sampling = sequence.sampling
    fields = [
        name
        for name, is_set in (
            ("structured_outputs or tools", is_constraining(sampling.constraint)),
            ("allowed_token_ids", sampling.allowed_token_ids is not None),
            ("bad_words", bool(sampling.bad_token_ids)),
            ("min_tokens", sampling.min_tokens > 0),
        )
        if is_set
    ]
    if fields and fields != ["min_tokens"]:
        return NonFiniteLogits(
            f"no token could be chosen behind the first {len(sequence.token_ids)}: {', '.join(fields)} together leave "
            "none, or the model computed NaN or infinity"
        )
    return NonFiniteLogits(
        f"the model computed NaN or infinity within the first {len(sequence.token_ids)} tokens of this request; "
        "where it was loaded as float16, try --dtype bfloat16 or float32"
    )


def _make_logprobs(sampled: Sampled, index: int, num_top: int) -> wire.TokenLogprobs:
    return wire.TokenLogprobs(
        float(sampled.logprobs[index]),
        sampled.top_ids[index, :num_top].tolist(),
        sampled.top_logprobs[index, :num_top].tolist(),
    )
