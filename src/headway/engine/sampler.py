"""Logits to tokens, a whole batch in one call of the native kernel. engine/runner calls it once a step.

A row's result depends on that row alone: not on the batch, the threads or the instruction set. Its noise is
Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) of the output position, under the key
(seed, choice); so numpy.random.Philox(key=[seed, choice], counter=...) gives the same words.

In order, as vLLM does it: log-probabilities of the raw logits; tokens of the mask and allowed tokens alone; logit bias,
end tokens banned before min_tokens, last tokens of bad words behind their others in the output;
repetition penalty over prompt and output, then frequency and presence penalty over the output; temperature 0 (or under
1e-5) takes the largest, ties by the lower id; else / temperature, min_p, top_k, top_p (the smallest set whose
probability reaches it, ties by the lower id), then the inverse of the distribution function in ascending order of ids.
"""

from collections.abc import Collection

import numpy as np

import headway_wire as wire
from headway import _native
from headway.errors import InvalidConfig, InvariantBroken
from headway.executor.base import Float32, Int32, Sampled

__all__ = ["Sampled", "Sampler"]

_SEED_MASK = 2**64 - 1
_NO_LOGPROBS = -1
BITS_A_WORD = 32


class Sampler:
    """Holds how each row of the token matrix is sampled, and the matrix itself. One owner: calls wait for each other.

    Args:
        max_num_seqs: rows.
        vocab_size: the width of the logits. Ids outside it in prompts, biases and end tokens are ignored.
        max_model_len: tokens a row, prompt and output.
        threads: that share the rows of one call; they sleep between calls.

    Raises InvalidConfig when HEADWAY_ISA names an instruction set that is not there.
    """

    native: _native.Sampler
    """For executors that sample themselves."""
    token_ids: Int32
    """[max_num_seqs, max_model_len]: every running sequence's tokens (prompt and output) by row; engine/batch fills."""
    masks: Int32
    """[max_num_seqs, ceil(vocab_size / 32)]: bit i % 32 of word i / 32 allows token i in a row that is masked. Whoever
    writes them beside a running step does so between close_masks() and open_masks()."""

    def __init__(self, *, max_num_seqs: int, vocab_size: int, max_model_len: int, threads: int) -> None:
        self.token_ids = np.zeros((max_num_seqs, max_model_len), dtype=np.int32)
        self.masks = np.zeros((max_num_seqs, -(-vocab_size // BITS_A_WORD)), dtype=np.int32)
        self._num_logprobs = np.full(max_num_seqs, _NO_LOGPROBS, dtype=np.int32)
        self._vocab_size = vocab_size
        try:
            self.native = _native.Sampler(self.token_ids, self.masks, vocab_size, threads)
        except ValueError as error:
            raise InvalidConfig(str(error)) from error

    def set_row(
        self,
        row: int,
        sampling: wire.Sampling,
        *,
        seed: int,
        choice: int,
        end_token_ids: Collection[int],
        num_prompt_tokens: int,
    ) -> None:
        """How the sequence that takes `row` is sampled: without a mask, and all that comes is chosen.

        `seed` is 64 bits, a negative one in two's complement. `end_token_ids` are banned before sampling.min_tokens.
        Raises InvariantBroken on a row that is not there.
        """
        biases = [(id_, bias) for id_, bias in sampling.logit_bias.items() if 0 <= id_ < self._vocab_size]
        num_logprobs, num_prompt_logprobs = (
            _NO_LOGPROBS if wanted is None else wanted for wanted in (sampling.logprobs, sampling.prompt_logprobs)
        )
        try:
            self.native.set_row(
                row,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=max(0, sampling.top_k),
                min_p=sampling.min_p,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                seed=seed & _SEED_MASK,
                choice=choice,
                bias_ids=[id_ for id_, _ in biases],
                biases=[bias for _, bias in biases],
                allowed_ids=sampling.allowed_token_ids or [],
                bad_words=sampling.bad_token_ids,
                banned_ids=[id_ for id_ in end_token_ids if 0 <= id_ < self._vocab_size],
                min_tokens=sampling.min_tokens,
                num_prompt_tokens=num_prompt_tokens,
                num_logprobs=num_logprobs,
                num_prompt_logprobs=num_prompt_logprobs,
            )
        except ValueError as error:
            raise InvariantBroken(str(error)) from error
        self._num_logprobs[row] = max(num_logprobs, num_prompt_logprobs)

    def set_masked(self, row: int, is_masked: bool) -> None:
        """Whether the row's tokens are chosen among those of its mask. Raises InvariantBroken on a row that is not
        there."""
        try:
            self.native.set_masked(row, is_masked)
        except ValueError as error:
            raise InvariantBroken(str(error)) from error

    def set_given(self, row: int, num_given: int) -> None:
        """The first `num_given` tokens of the row, its prompt's counted, are not to be chosen: where sample() is told
        of fewer, what comes back is of the row's own next token, with as many log-probabilities as were asked for.

        Raises InvariantBroken on a row that is not there, and on more tokens than it has room for.
        """
        try:
            self.native.set_given(row, num_given)
        except ValueError as error:
            raise InvariantBroken(str(error)) from error

    def close_masks(self) -> None:
        """Masks are being written: sampling a masked row waits for open_masks()."""
        self.native.close_masks()

    def open_masks(self) -> None:
        """They are written. From any thread."""
        self.native.open_masks()

    def make_sampled(self, rows: Int32) -> Sampled:
        """Room for what is sampled of these rows of the token matrix."""
        n = len(rows)
        k = max(0, int(self._num_logprobs.take(rows, mode="clip").max(initial=0)))
        return Sampled(
            np.empty(n, np.int32),
            np.empty(n, np.bool_),
            np.empty(n, np.float32),
            np.empty((n, k), np.int32),
            np.empty((n, k), np.float32),
        )

    def sample(self, logits: Float32, rows: Int32, num_tokens: Int32) -> Sampled:
        """One token for each row of `logits`.

        Args:
            logits: [n, vocab_size].
            rows: [n], the row of the token matrix of each.
            num_tokens: [n], that sequence's tokens so far; the noise's position is this less its prompt's. Fewer than
                its prompt's, where prompt log-probabilities were asked for: nothing is drawn, and what is told is of
                the prompt's own next token.

        Blocks, without the GIL. Raises InvariantBroken when shapes, rows or counts are impossible.
        """
        sampled = self.make_sampled(rows)
        try:
            self.native.sample(
                np.ascontiguousarray(logits, dtype=np.float32),
                np.ascontiguousarray(rows, dtype=np.int32),
                np.ascontiguousarray(num_tokens, dtype=np.int32),
                sampled.token_ids,
                sampled.is_finite,
                sampled.logprobs,
                sampled.top_ids,
                sampled.top_logprobs,
            )
        except ValueError as error:
            raise InvariantBroken(str(error)) from error
        return sampled
