"""DecodeGraphs: steps in which every sequence computes one token, in static buffers, so that they can be captured.

A step is padded to a shape: a number of sequences and a number of blocks each. Rows that pad it are token 0 at position
0 of a block that no sequence has. Each shape is captured once, at load; a step that fits one fills the buffers in one
copy and replays it, without a call for each op. What capturing is comes from outside: CUDA graphs (torch_capture.py),
or, where there is no GPU, nothing, and the same code runs op by op.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headway.executor.base import Int64, StepArrays
from headway.executor.torch_attention import GroupTensors, StepGroups
from headway.executor.torch_ops import StepTensors
from headway.planner.limits import MAX_GATHERED_ON_GPU

Body = Callable[[StepTensors], Tensor]
"""Runs a step's ops: logits [num_seqs, vocab_size] in float32."""
Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]
"""What runs a function of static buffers -> what runs it again."""

MAX_SEQS = 256
"""Larger steps run op by op: their work takes longer than their calls."""
_LEAST_CONTEXT = 128
_SMALL_TOKENS = 16 * 1024
"""Gathering so many tokens takes no longer than what a replay saves."""
_ROWS = 3
"""Of a step's buffer before its tables: token ids, positions, slots."""


def run_again(body: Replay) -> Replay:
    """A Capture that captures nothing."""
    return body


@dataclass(frozen=True, slots=True, order=True)
class DecodeShape:
    """What a step is padded to."""

    num_seqs: int
    num_blocks: int
    """Of each sequence."""

    @property
    def num_elements(self) -> int:
        """Of its buffer: three rows and the block tables."""
        return self.num_seqs * (_ROWS + self.num_blocks)


def decode_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, then each eighth one up to 64 and each sixteenth up to 256, as far as steps can be so large."""
    largest = min(max_num_seqs, MAX_SEQS)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_SEQS + 1, 16)]
    return (*(size for size in sizes if size < largest), largest)


def decode_shapes(max_num_seqs: int, max_context: int, block_size: int) -> tuple[DecodeShape, ...]:
    """Sizes x contexts of 128 tokens and its doubles, ascending; without those that gather more than a step may."""
    most_blocks = -(-max_context // block_size)
    blocks = [-(-_LEAST_CONTEXT // block_size)]
    while blocks[-1] < most_blocks:
        blocks.append(blocks[-1] * 2)
    lengths = sorted({min(number, most_blocks) for number in blocks})
    return tuple(
        DecodeShape(size, number)
        for size in decode_sizes(max_num_seqs)
        for number in lengths
        if size * number * block_size <= max(MAX_GATHERED_ON_GPU, max_context)
    )


class DecodeGraphs:
    """The captured shapes of one executor.

    Args:
        shapes: of decode_shapes().
        block_size: tokens a block.
        pad_block: the one that rows which pad a step write to.
        vocab_size: columns of the logits.
        dtype: of masks.
        device: of the buffers.
        body: the executor's ops.
        capture: called once for each shape by capture_all().
    """

    def __init__(
        self,
        shapes: Sequence[DecodeShape],
        *,
        block_size: int,
        pad_block: int,
        vocab_size: int,
        dtype: torch.dtype,
        device: torch.device,
        body: Body,
        capture: Capture,
    ) -> None:
        self._block_size, self._pad_block, self._dtype = block_size, pad_block, dtype
        self._body, self._capture = body, capture
        self._sizes = sorted({shape.num_seqs for shape in shapes})
        self._lengths = {
            size: sorted(shape.num_blocks for shape in shapes if shape.num_seqs == size) for size in self._sizes
        }
        most = max(shape.num_elements for shape in shapes)
        self._host = torch.zeros(most, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._inputs = torch.zeros(most, dtype=torch.int64, device=device)
        self._rows = torch.arange(self._sizes[-1], device=device)
        self._logits = torch.empty(self._sizes[-1], vocab_size, device=device)
        self._replays: dict[DecodeShape, Replay] = {}

    def capture_all(self) -> None:
        """Captures each shape; the largest first, so that the others fit into its memory."""
        for size in reversed(self._sizes):
            for num_blocks in reversed(self._lengths[size]):
                shape = DecodeShape(size, num_blocks)
                self._fill(shape, _EMPTY)
                self._replays[shape] = self._capture(partial(self._compute, shape))

    def choose(self, step: StepArrays) -> DecodeShape | None:
        """The shape that a step is padded to; None: it runs op by op.

        1. Every sequence has one token, and the logits of each are wanted.
        2. There is a shape of so many sequences, and of so many blocks as the longest one needs.
        3. At most half of what is gathered is padding, unless that is little altogether.
        """
        num_seqs = step.context_lens.size
        if not 1 <= num_seqs <= self._sizes[-1] or step.token_ids.size != num_seqs:
            return None  # 1, 2
        if step.logit_rows.size != num_seqs or not (step.logit_rows == np.arange(num_seqs)).all():
            return None  # 1
        size = self._sizes[bisect.bisect_left(self._sizes, num_seqs)]
        needed = -(-step.context_lens.astype(np.int64) // self._block_size)
        lengths = self._lengths[size]
        at = bisect.bisect_left(lengths, int(needed.max()))
        if at == len(lengths):
            return None  # 2
        gathered = size * lengths[at] * self._block_size
        if gathered > max(_SMALL_TOKENS, 2 * int(needed.sum()) * self._block_size):
            return None  # 3
        return DecodeShape(size, lengths[at])

    def run(self, step: StepArrays, shape: DecodeShape) -> Tensor:
        """Replays the shape, which choose() gave. Logits [num_seqs, vocab_size], valid until the next call."""
        self._fill(shape, step)
        self._replays[shape]()
        return self._logits[: step.context_lens.size]

    def _fill(self, shape: DecodeShape, step: StepArrays) -> None:
        """The step's arrays into the buffer, padded; one copy to the device."""
        size, given = shape.num_seqs, step.context_lens.size
        flat: Int64 = self._host[: shape.num_elements].numpy()
        rows, table = flat[: _ROWS * size].reshape(_ROWS, size), flat[_ROWS * size :].reshape(size, -1)
        rows[:, :given] = step.token_ids, step.positions, step.slots
        rows[:, given:] = np.array([[0], [0], [self._pad_block * self._block_size]])
        num_blocks = min(shape.num_blocks, step.block_tables.shape[1])
        table.fill(self._pad_block)
        table[:given, :num_blocks] = step.block_tables[:, :num_blocks]
        self._inputs[: shape.num_elements].copy_(self._host[: shape.num_elements], non_blocking=True)

    def _compute(self, shape: DecodeShape) -> None:
        """The step in the buffers. All that depends on their values is computed on the device: this is captured."""
        size = shape.num_seqs
        token_ids, positions, slots = self._inputs[: _ROWS * size].view(_ROWS, size)
        group = GroupTensors(
            table=self._inputs[_ROWS * size : shape.num_elements].view(size, shape.num_blocks),
            context_lens=positions + 1,
            query_positions=positions[:, None],
            block_size=self._block_size,
            dtype=self._dtype,
        )
        tensors = StepTensors(
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            logit_rows=self._rows[:size],
            groups=StepGroups((group,), None, None),
        )
        self._logits[:size].copy_(self._body(tensors))


_EMPTY = StepArrays(
    token_ids=np.zeros(0, np.int32),
    positions=np.zeros(0, np.int32),
    query_starts=np.zeros(1, np.int32),
    context_lens=np.zeros(0, np.int32),
    block_tables=np.zeros((0, 1), np.int32),
    slots=np.zeros(0, np.int64),
    logit_rows=np.zeros(0, np.int32),
)
