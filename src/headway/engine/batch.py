"""Batch: a StepPlan as the executor's arrays, from arrays that persist between steps.

Each running sequence has a row (the scheduler gives it) in the token matrix and in the block table. A row is filled
when its sequence starts and added to when it gains a token or a block; a step then gathers from the rows, vectorised
over the batch.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headway.core.sequence import Sequence
from headway.core.step import StepPlan, TableChange
from headway.executor.base import Int32, StepArrays

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Tokens of a step whose logits tell the log-probability of the token behind each, which is not sampled."""

    runs: list[tuple[Sequence, int, int]]
    """(whose, the position of the first one that is told, how many), end to end in the arrays."""
    at: Int32  # [num_scored], indexes into the step's tokens
    rows: Int32  # [num_scored], of the token matrix
    num_tokens: Int32  # [num_scored], the position of the token that is told


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A step's arrays, and whom its logits belong to."""

    arrays: StepArrays
    sampled: list[Sequence]
    """Those that have no token to catch up after this step."""
    rows: Int32  # [num_sampled], their rows in the token matrix
    num_tokens: Int32  # [num_sampled], their tokens so far, prompt and output
    behind: list[Sequence] = field(default_factory=list)
    """The others. Their logits only tell whether what they computed may be shared."""
    is_sampled: Bool | None = None  # [num_seqs], whose each row of the logits is; None: all are sampled
    scored: ScoredRows | None = None
    """Of tokens whose log-probabilities are wanted and that are not sampled; they are no rows of the logits yet."""


class Batch:
    """The persistent arrays. The token matrix is the sampler's, shared: it counts tokens for penalties in it.

    Args:
        token_matrix: int32 [max_num_seqs, max_model_len], written here only.
    """

    def __init__(self, token_matrix: Int32, *, block_size: int) -> None:
        max_num_seqs, max_model_len = token_matrix.shape
        self._tokens = token_matrix
        self._block_size = block_size
        self._table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self._arange = np.arange(max_num_seqs + 1, dtype=np.int32)

    def start(self, sequence: Sequence) -> None:
        """Fills the row of a sequence that starts (again): its tokens; its blocks come as a table change."""
        self._tokens[sequence.row, : len(sequence.token_ids)] = sequence.token_ids
        self._table[sequence.row] = 0

    def rewrite(self, sequence: Sequence, start: int) -> None:
        """Writes a running sequence's tokens from position `start` on."""
        self._tokens[sequence.row, start : len(sequence.token_ids)] = sequence.token_ids[start:]

    def change_tables(self, changes: list[TableChange]) -> None:
        """Writes new blocks into the rows of their sequences."""
        for sequence, start, block_ids in changes:
            if len(block_ids) == 1:
                self._table[sequence.row, start] = block_ids[0]
            else:
                self._table[sequence.row, start : start + len(block_ids)] = block_ids

    def append(self, step: BatchStep, token_ids: Int32) -> None:
        """Writes the sampled tokens, one for each of `step.sampled`, behind the tokens of their rows."""
        self._tokens[step.rows, step.num_tokens] = token_ids

    def make_step(self, plan: StepPlan) -> BatchStep:
        """The arrays of a plan whose rows and tables are filled. The cost in Python does not depend on the tokens."""
        computed = [sequence.num_computed_tokens for sequence in plan.sequences]
        last = [len(sequence.token_ids) - 1 for sequence in plan.sequences]
        if computed == last:
            return self._make_streams(plan, last)
        return self._make_mixed(plan)

    def _make_streams(self, plan: StepPlan, last: list[int]) -> BatchStep:
        """The usual step: each sequence computes its last token, whose position is in `last`, and gets its next one."""
        size = self._block_size
        rows = np.array([sequence.row for sequence in plan.sequences], np.int32)
        positions = np.array(last, np.int32)
        context_lens = positions + 1
        blocks, offsets = np.divmod(positions, size)
        starts = self._arange[: len(last) + 1]
        arrays = StepArrays(
            token_ids=self._tokens[rows, positions],
            positions=positions,
            query_starts=starts,
            context_lens=context_lens,
            block_tables=self._table[rows, : max(last) // size + 1],
            slots=self._table[rows, blocks].astype(np.int64) * size + offsets,
            logit_rows=starts[:-1],
        )
        return BatchStep(arrays, plan.sequences, rows, context_lens)

    def _make_mixed(self, plan: StepPlan) -> BatchStep:
        """Any step."""
        sequences, num_seqs = plan.sequences, len(plan.sequences)
        rows = np.fromiter([sequence.row for sequence in sequences], np.int32, num_seqs)
        computed = np.fromiter([sequence.num_computed_tokens for sequence in sequences], np.int32, num_seqs)
        lengths = np.fromiter([len(sequence.token_ids) for sequence in sequences], np.int32, num_seqs)
        counts = np.fromiter(plan.num_tokens, np.int32, num_seqs)
        context_lens = computed + counts
        starts = np.zeros(num_seqs + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        if int(starts[-1]) == num_seqs:
            token_seqs, token_rows, positions = self._arange[:num_seqs], rows, computed
        else:
            token_seqs = np.repeat(self._arange[:num_seqs], counts)
            token_rows = rows[token_seqs]
            positions = np.arange(int(starts[-1]), dtype=np.int32) - (starts[:-1] - computed)[token_seqs]
        num_table_blocks = (int(context_lens.max()) - 1) // self._block_size + 1
        blocks = self._table[token_rows, positions // self._block_size].astype(np.int64)
        is_sampled = context_lens == lengths
        sampled = is_sampled.nonzero()[0]
        arrays = StepArrays(
            token_ids=self._tokens[token_rows, positions],
            positions=positions,
            query_starts=starts,
            context_lens=context_lens,
            block_tables=self._table[rows, :num_table_blocks],
            slots=blocks * self._block_size + positions % self._block_size,
            logit_rows=starts[1:] - 1,
        )
        scored = _find_scored(plan, starts)
        if len(sampled) == num_seqs:
            return BatchStep(arrays, sequences, rows, lengths, scored=scored)
        return BatchStep(
            arrays,
            sampled=[sequences[index] for index in sampled],
            rows=rows[sampled],
            num_tokens=lengths[sampled],
            behind=[sequences[index] for index in (~is_sampled).nonzero()[0]],
            is_sampled=is_sampled,
            scored=scored,
        )


def _find_scored(plan: StepPlan, query_starts: Int32) -> ScoredRows | None:
    """The log-probability of token i is told by the logits of token i - 1. Those of a prompt are runs of their own."""
    runs, at, positions = [], [], []
    for index, (sequence, num_new) in enumerate(zip(plan.sequences, plan.num_tokens, strict=True)):
        if sequence.is_scored:
            continue
        computed = sequence.num_computed_tokens
        first = max(computed + 1, sequence.num_scored_tokens)
        end = min(computed + num_new + 1, sequence.num_to_score)
        border = min(max(first, sequence.num_prompt_tokens), end)
        for begin, stop in ((first, border), (border, end)):
            if begin < stop:
                runs.append((sequence, begin, stop - begin))
                positions.append(np.arange(begin, stop, dtype=np.int32))
                at.append(positions[-1] + (query_starts[index] - computed - 1))
    if not runs:
        return None
    rows = np.repeat(np.array([sequence.row for sequence, _, _ in runs], np.int32), [count for _, _, count in runs])
    return ScoredRows(runs, np.concatenate(at), rows, np.concatenate(positions))
