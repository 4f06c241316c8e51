"""What an executor is given and gives: the arrays of one step in, logits out. It knows no request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headway.checkpoint.raw import RawTensor

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step: num_seqs runs of new tokens, end to end. Block b holds slots b * block_size and on."""

    token_ids: Int32  # [num_tokens]
    positions: Int32  # [num_tokens]
    query_starts: Int32  # [num_seqs + 1], sequence s has tokens query_starts[s]:query_starts[s + 1]
    context_lens: Int32  # [num_seqs], tokens in the cache once this step is done
    block_tables: Int32  # [num_seqs, max_blocks], those from ceil(context_len / block_size) on are not read
    slots: Int64  # [num_tokens], where each token's K and V go
    logit_rows: Int32  # [num_logit_rows], indexes into the tokens: whose logits are wanted


@dataclass(frozen=True, slots=True)
class EncoderStep:
    """One step of an encoder: num_seqs whole sequences, end to end, each from position 0 on."""

    token_ids: Int32  # [num_tokens]
    token_types: Int32  # [num_tokens]
    query_starts: Int32  # [num_seqs + 1], sequence s has tokens query_starts[s]:query_starts[s + 1]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen for each of n rows; k is the largest number of logprobs that one of them asked for."""

    token_ids: Int32  # [n], 0 where the row is not finite
    is_finite: Bool  # [n], False: the logits have NaN or +infinity, or no token is left
    logprobs: Float32  # [n], of token_ids, log-softmax of the raw logits; NaN where none was asked for
    top_ids: Int32  # [n, k], likeliest first, ties by the lower id; -1 after what the row asked for
    top_logprobs: Float32  # [n, k], -infinity after what the row asked for

    def part(self, rows: slice) -> "Sampled":
        """Some of the rows, as views."""
        return Sampled(
            self.token_ids[rows],
            self.is_finite[rows],
            self.logprobs[rows],
            self.top_ids[rows],
            self.top_logprobs[rows],
        )


class Weights(Protocol):
    """A checkpoint's tensors under a Program's canonical names."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is."""
        ...

    def read(self, name: str) -> Float32:
        """One tensor, dequantised, C-contiguous; a new array or a read-only view of the file."""
        ...

    def raw(self, name: str) -> RawTensor:
        """One tensor as its file has it: type, bytes and the order of its rows."""
        ...

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        """The tensor's pages need not stay resident; with `rows` only those of the file's rows [begin, end)."""
        ...


class KVBuffers(Protocol):
    """The memory of the KV cache, one pair of buffers for each cache id of the Program, zeroed at first."""

    num_blocks: int
    block_size: int
    dtype: str

    def buffers(self, cache_id: int) -> tuple[memoryview, memoryview]:
        """K and V: writable bytes, [num_blocks, block_size, num_kv_heads, dim] of `dtype` each; V is empty if in K."""
        ...


class Executor(Protocol):
    """A Program bound to its weights and a KV cache. Not thread-safe: one step at a time."""

    vocab_size: int

    def execute(self, step: StepArrays) -> Float32:
        """Runs the step, writes its K and V. Logits [num_logit_rows, vocab_size], valid until the next call."""
        ...


class EncodingExecutor(Protocol):
    """An encoder's Program bound to its weights. Not thread-safe: one step at a time."""

    def encode(self, step: EncoderStep) -> Float32:
        """Runs the step. [num_seqs, width], a vector or the scores of each sequence, valid until the next call."""
        ...


@runtime_checkable
class SamplingExecutor(Executor, Protocol):
    """An executor that samples as well, in the same call."""

    def execute_and_sample(
        self,
        step: StepArrays,
        sampled_rows: Int32,
        behind_rows: Int32,
        behind_is_finite: Bool,
        sampler: Any,
        rows: Int32,
        num_tokens: Int32,
        sampled: Sampled,
    ) -> None:
        """Runs the step, writes its K and V, samples.

        Args:
            step: its logit_rows are not read.
            sampled_rows: [n], indexes into the tokens.
            behind_rows: [m], tokens of which only is asked whether their last hidden state is finite.
            behind_is_finite: [m], written.
            sampler: a _native.Sampler.
            rows, num_tokens: [n], as its sample() takes them.
            sampled: written.
        """
        ...
