"""An encoder's step on kernels that were made for a cache: its K and V lie in blocks for as long as a layer takes."""

import numpy as np

from headway.executor.base import EncoderStep, StepArrays
from headway.model.ops import Attention
from headway.model.program import Program

_KV_BYTES = {"bfloat16": 2, "float16": 2, "int8": 1}
_SCALE_BYTES = 4


def num_step_blocks(*, max_tokens: int, max_seqs: int, block_size: int) -> int:
    """Blocks that any step of so many tokens and sequences can be placed in: one of each sequence may be part empty."""
    return -(-max_tokens // block_size) + max_seqs


def step_kv_bytes(program: Program, dtype: str, num_slots: int) -> tuple[int, int]:
    """K and V of a step's tokens in the layer that needs most; rows of K begin at multiples of 4 bytes."""
    sizes = [(0, 0)]
    size, scale = _KV_BYTES.get(dtype, 4), _SCALE_BYTES if dtype == "int8" else 0
    for op in program.ops:
        if isinstance(op, Attention):
            k_bytes = -(-op.qk_dim * size // 4) * 4 + scale
            sizes.append(
                (num_slots * op.num_kv_heads * k_bytes, num_slots * op.num_kv_heads * (op.v_dim * size + scale))
            )
    return max(k for k, _ in sizes), max(v for _, v in sizes)


class StepKV:
    """KVBuffers whose layers share one memory: nothing outlives the layer that wrote it.

    Args:
        program: an encoder's.
        num_blocks: num_step_blocks().
    """

    def __init__(self, program: Program, *, num_blocks: int, block_size: int, dtype: str) -> None:
        self.num_blocks, self.block_size, self.dtype = num_blocks, block_size, dtype
        sizes = step_kv_bytes(program, dtype, num_blocks * block_size)
        # Mapped lazily, as np.zeros does and bytearray does not.
        self._k, self._v = (np.zeros(size, np.uint8).data for size in sizes)

    @property
    def num_bytes(self) -> int:
        """Of both."""
        return self._k.nbytes + self._v.nbytes

    def buffers(self, cache_id: int) -> tuple[memoryview, memoryview]:
        """K and V, the same for each layer."""
        return self._k, self._v


def place_whole(step: EncoderStep, block_size: int) -> StepArrays:
    """The step with each sequence in blocks of its own, from block 0 on; logit_rows are the last tokens."""
    starts = step.query_starts.astype(np.int64)
    lengths = np.diff(starts)
    num_blocks = -(-lengths // block_size)
    first_blocks = np.cumsum(num_blocks) - num_blocks
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    tables = first_blocks[:, None] + np.arange(max(1, int(num_blocks.max(initial=1))))[None, :]
    tables = np.minimum(tables, (first_blocks + num_blocks - 1)[:, None])
    return StepArrays(
        token_ids=step.token_ids,
        positions=positions.astype(np.int32),
        query_starts=step.query_starts,
        context_lens=lengths.astype(np.int32),
        block_tables=tables.astype(np.int32),
        slots=np.repeat(first_blocks * block_size, lengths) + positions,
        logit_rows=(starts[1:] - 1).astype(np.int32),
    )
