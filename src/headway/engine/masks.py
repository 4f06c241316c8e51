"""MaskFiller: which tokens the constrained sequences of a step may choose, written while the step runs.

    start(sequences)   closes the gate, hands the matchers to a side thread
    the step           computes logits; who samples a masked row waits at the gate
    side thread        writes the masks and opens the gate, whatever happens to it
    finish()           waits for it, says whose mask could not be made

A matcher belongs to one sequence, and between start() and finish() to the side thread alone.

The whole step waits for its last mask. Where an output's masks are slow, or many take long together, the next ones are
made before their steps (late_masks), so that a step waits for little more than the first slow one; where slow ones take
over MAX_MASKS_S together all the same, the sequence of the slowest ends. Time is the thread's own: a busy machine ends
nobody.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

import headway_wire as wire
from headway.core.sequence import Sequence
from headway.engine.constrained import ConstrainedOutput, Mask
from headway.engine.constraint import PARAM
from headway.engine.late_masks import MAX_MASK_S, make_too_slow
from headway.engine.sampler import BITS_A_WORD, Sampler
from headway.errors import HeadwayError, InternalError, InvalidRequest
from headway.executor.base import Int32
from headway.text.grammar_compiler import check_matcher

logger = logging.getLogger(__name__)

MAX_MASKS_S = MAX_MASK_S
"""Of a step, for the masks that are slow."""
_Failures = dict[Sequence, HeadwayError]


class MaskFiller:
    """Owned by the engine's loop.

    Args:
        sampler: whose masks are written.
        outputs: of the sequences that are constrained; others may be missing. Only read.
        end_token_ids: the model's own.
    """

    def __init__(
        self, sampler: Sampler, outputs: Mapping[Sequence, ConstrainedOutput], end_token_ids: Iterable[int]
    ) -> None:
        self._sampler = sampler
        self._masks = [Mask(row, row.ctypes.data) for row in sampler.masks]
        self._outputs = outputs
        self._others: Int32 = np.full(sampler.masks.shape[1], -1, np.int32)
        for token_id in end_token_ids:
            word, bit = divmod(token_id, BITS_A_WORD)
            self._others.view(np.uint32)[word] &= ~np.uint32(1 << bit)
        self._masked_rows: set[int] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._filling: Future[_Failures] | None = None

    @property
    def num_words(self) -> int:
        """Of a mask."""
        return len(self._others)

    def start_row(self, row: int) -> None:
        """A sequence took it: the sampler has no mask for it yet."""
        self._masked_rows.discard(row)

    def start(self, sequences: Iterable[Sequence]) -> None:
        """Begins to write the masks of those among them whose next token is constrained."""
        if not self._outputs and not self._masked_rows:
            return
        wanted = []
        for sequence in sequences:
            output = self._outputs.get(sequence)
            needs_mask = output is not None and output.needs_mask
            if needs_mask != (sequence.row in self._masked_rows):
                self._sampler.set_masked(sequence.row, needs_mask)
                (self._masked_rows.add if needs_mask else self._masked_rows.discard)(sequence.row)
            if needs_mask and output is not None:
                wanted.append((sequence, output))
        if not wanted:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "masks")
        self._sampler.close_masks()
        try:
            self._filling = self._pool.submit(self._fill_all, wanted)
        except BaseException:
            self._sampler.open_masks()
            raise

    def finish(self) -> _Failures:
        """Waits until they are written. Whose were not: an error that its sequence ends with."""
        if self._filling is None:
            return {}
        filling, self._filling = self._filling, None
        return filling.result()

    def close(self) -> None:
        """Ends the side thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fill_all(self, wanted: list[tuple[Sequence, ConstrainedOutput]]) -> _Failures:
        failures: _Failures = {}
        slow: dict[Sequence, float] = {}
        try:
            end_s = time.thread_time()
            for sequence, output in wanted:
                begin_s, is_new = end_s, False
                try:
                    is_new = self._take_or_fill(sequence, output)
                except HeadwayError as error:
                    failures[sequence] = error
                except BaseException as error:  # a panic of the library too: the others of the step go on
                    logger.exception("a mask could not be made")
                    failures[sequence] = InternalError(f"what may come next could not be told: {type(error).__name__}")
                end_s = time.thread_time()
                if is_new:
                    output.note_mask(end_s - begin_s)
                if output.is_slow:
                    slow[sequence] = end_s - begin_s
        finally:
            self._sampler.open_masks()
        if sum(slow.values()) > MAX_MASKS_S:
            slowest = max(slow, key=slow.__getitem__)
            failures.setdefault(slowest, make_too_slow(slow[slowest]))
        return failures

    def _take_or_fill(self, sequence: Sequence, output: ConstrainedOutput) -> bool:
        """Whether the mask had to be made."""
        mask = self._masks[sequence.row]
        ahead = output.take_mask()
        if ahead is not None:
            mask.words[:] = ahead
            return False
        self.fill(sequence, output, mask)
        return True

    def fill(self, sequence: Sequence, output: ConstrainedOutput, mask: Mask) -> None:
        """Writes a mask. In a side thread, to which the matcher belongs meanwhile. Raises InvalidRequest."""
        matcher = output.matcher
        matcher.unsafe_compute_mask_ptr(mask.address, mask.words.nbytes)
        check_matcher(matcher, PARAM)
        sampling = sequence.sampling
        if _leaves_none(sampling, mask.words):
            raise InvalidRequest(
                f"{PARAM}, allowed_token_ids and bad_words together leave no token behind the first "
                f"{len(sequence.token_ids)}: leave one of them out, or allow more tokens",
                param=PARAM,
            )
        if sampling.ignore_eos or sequence.num_output_tokens < sampling.min_tokens:
            output.is_at_end = not self._leave_out_ends(mask.words)

    def _leave_out_ends(self, mask: Int32) -> bool:
        """Takes out the tokens that only end the output. False: no other may come, and they stay."""
        others = mask & self._others
        if not others.any():
            return False
        mask[:] = others
        return True


def _leaves_none(sampling: wire.Sampling, words: Int32) -> bool:
    """Whether none of a mask's tokens may be chosen for what the request itself allows and forbids. Of bad words, those
    of one token: others depend on what came before."""
    if sampling.allowed_token_ids is None and not sampling.bad_token_ids:
        return False
    left = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    if sampling.allowed_token_ids is not None:
        left = np.intersect1d(left, sampling.allowed_token_ids)
    return not np.setdiff1d(left, [word[0] for word in sampling.bad_token_ids if len(word) == 1]).size
