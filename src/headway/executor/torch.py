"""TorchExecutor: interprets a Program with torch. The oracle of the other executors, and what serves until they exist.

A Program is fused (fuse.py) and compiled once into a list of functions over numbered registers (torch_ops.py); a step
runs the list. Registers are emptied after their last use, so that a step holds one layer's values and not all. Steps in
which every sequence computes one token may be replayed as they were captured (torch_decode.py).
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.executor.base import EncoderStep, Float32, KVBuffers, StepArrays, Weights
from headway.executor.fuse import ALL_FUSIONS, Fusion, PlanOp, fuse, outs_of
from headway.executor.op_times import OpTime, between, label, part_of
from headway.executor.torch_attention import TORCH_DTYPES, PagedCache, StepGroups, Workspace, make_step_groups
from headway.executor.torch_decode import Capture, DecodeGraphs, decode_shapes
from headway.executor.torch_encoder import Sequences
from headway.executor.torch_memory import told_out_of_memory
from headway.executor.torch_ops import Compiler, Registers, Run, StepTensors, compile_op
from headway.executor.torch_ranks import Group
from headway.executor.torch_staging import HostRows
from headway.executor.torch_weights import WeightLoader
from headway.model.ops import AllGather, Experts, SelectRows
from headway.model.program import Program


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Which steps of one token a sequence are captured, and how."""

    max_num_seqs: int
    max_context: int
    """Tokens of a sequence."""
    capture: Capture


class TorchExecutor:
    """A Program over its weights and caches; one step at a time, from one thread.

    Args:
        program: checked.
        weights: tensors under the Program's names; read once, here, and converted one by one.
        kv: its memory is used as it is and must outlive the executor; its dtype is what K and V are kept in.
        dtype: float32, bfloat16 or float16: what weights are held and computed with. Logits are float32.
        threads: compute threads of torch, set for the whole process.
        device: a torch device; on another than the CPU K and V live there, in place of kv's memory.
        fusions: which of fuse.py's passes run.
        decode: steps of one token a sequence are captured; K and V live in memory of the device. None: every step
            runs op by op, as do all steps of mixtures of experts, whose calls depend on which are chosen, and of ranks.
        group: the ranks that run the parts of a model together, this one among them (shard.py).

    Raises:
        TensorMismatch: a weight of a wrong shape.
        UnsupportedModel: an op that this executor does not run.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        kv: KVBuffers,
        *,
        dtype: str,
        threads: int,
        device: str = "cpu",
        fusions: Collection[Fusion] = ALL_FUSIONS,
        group: Group | None = None,
        decode: DecodePlan | None = None,
    ) -> None:
        self.vocab_size = program.vocab_size
        self._threads = threads
        self._group = group
        self._device = torch.device(device)
        self._dtype = TORCH_DTYPES[dtype]
        self._block_size = kv.block_size
        plan = fuse(program.ops, fusions)
        self._register = {name: at for at, name in enumerate(name for op in plan for name in outs_of(op))}
        self._last_hidden = next((self._register[op.input] for op in plan if isinstance(op, SelectRows)), None)
        self._result = self._register[program.result]
        # A mask cannot hide NaN: once one was computed, what is gathered past a context is zeroed.
        self._clears_unused = [False]
        self._labels = [label([part_of(op)]) for op in plan]
        self._times_ns: list[int] | None = None
        self._has_own_kv = decode is not None or self._device.type != "cpu"
        self._host = HostRows()
        with torch.inference_mode():
            self._runs = self._compile(program, plan, weights, kv)
            self._graphs = self._capture(decode, plan, kv)

    def _compile(
        self, program: Program, plan: Sequence[PlanOp], weights: Weights, kv: KVBuffers
    ) -> list[tuple[Run, tuple[int, ...]]]:
        """Each op's function, and the registers that nothing reads after it."""
        last_use = {name: at for at, op in enumerate(plan) for name in op.inputs}
        at_of = {outs_of(op)[0]: at for at, op in enumerate(plan)}
        kv_dtype = TORCH_DTYPES[kv.dtype]
        compiler = Compiler(
            register=self._register,
            weights=WeightLoader(weights, program.weights, self._dtype, self._device),
            caches=tuple(PagedCache(spec, kv, self._device, is_own=self._has_own_kv) for spec in program.caches),
            dtype=self._dtype,
            workspace=Workspace(kv_dtype, self._device),
            device=self._device,
            last_product=_last_product(program),
            group=self._group,
            is_last_use=lambda op, name: last_use[name] == at_of[outs_of(op)[0]],
            clears_unused=self._clears_unused,
        )
        return [(compile_op(op, compiler), self._dead_after(at, last_use)) for at, op in enumerate(plan)]

    def _dead_after(self, at: int, last_use: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(
            self._register[name]
            for name, last in last_use.items()
            if last == at and self._register[name] != self._last_hidden
        )

    def _capture(self, decode: DecodePlan | None, plan: Sequence[PlanOp], kv: KVBuffers) -> DecodeGraphs | None:
        if decode is None or self._group is not None or any(isinstance(op, Experts) for op in plan):
            return None
        graphs = DecodeGraphs(
            decode_shapes(decode.max_num_seqs, decode.max_context, kv.block_size),
            block_size=kv.block_size,
            pad_block=kv.num_blocks,
            vocab_size=self.vocab_size,
            dtype=self._dtype,
            device=self._device,
            body=lambda tensors: self._compute(tensors).float(),
            capture=decode.capture,
        )
        graphs.capture_all()
        return graphs

    @torch.inference_mode()
    def execute(self, step: StepArrays) -> Float32:
        """Runs the step, writes its K and V. Logits [num_logit_rows, vocab_size], valid until the next call."""
        with told_out_of_memory(self._device, "a step is computed"):
            return self._execute(step)

    def _execute(self, step: StepArrays) -> Float32:
        self._set_threads()
        shape = None if self._graphs is None or self._times_ns is not None else self._graphs.choose(step)
        if self._graphs is not None and shape is not None:
            return self._host.read(self._graphs.run(step, shape))
        token_ids, positions, slots, logit_rows = self._tensors(
            step.token_ids, step.positions, step.slots, step.logit_rows
        )
        groups = make_step_groups(step, self._block_size, self._dtype, self._device)
        return self._host.read(self._compute(StepTensors(token_ids, positions, slots, logit_rows, groups)))

    @torch.inference_mode()
    def encode(self, step: EncoderStep) -> Float32:
        """Runs a step of an encoder: see EncodingExecutor."""
        starts = step.query_starts.astype(np.int64)
        lengths = np.diff(starts)
        nothing = torch.empty(0, dtype=torch.int64)
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        token_ids, places, token_types = self._tensors(step.token_ids, positions, step.token_types)
        tensors = StepTensors(
            token_ids=token_ids,
            positions=places,
            slots=nothing,
            logit_rows=nothing,
            groups=StepGroups((), None, None),
            token_types=token_types,
            sequences=Sequences(starts, self._dtype, self._device),
        )
        self._set_threads()
        return self._host.read(self._compute(tensors))

    def _set_threads(self) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _compute(self, tensors: StepTensors) -> Tensor:
        """Runs the ops: the result, on the device."""
        registers: Registers = [None] * len(self._register)
        if self._times_ns is not None:
            self._times_ns = [time.monotonic_ns()]
        for run, dead in self._runs:
            run(registers, tensors)
            for register in dead:
                registers[register] = None
            if self._times_ns is not None:
                self._times_ns.append(self._end_ns())
        self._watch(registers)
        result: Tensor = registers[self._result]
        return result

    def time_ops(self, is_on: bool) -> None:
        """Whether steps note when each op ends: see TimedExecutor."""
        self._times_ns = [] if is_on else None

    def op_times(self) -> list[OpTime]:
        """Of the last step."""
        return between(self._labels, self._times_ns) if self._times_ns else []

    def _end_ns(self) -> int:
        if self._device.type == "cuda":  # what was asked for there is not done yet
            torch.cuda.synchronize(self._device)
        return time.monotonic_ns()

    def _tensors(self, *arrays: npt.NDArray[np.signedinteger]) -> tuple[Tensor, ...]:
        """The arrays on the device, in one copy."""
        joined = torch.from_numpy(np.concatenate([array.astype(np.int64) for array in arrays])).to(self._device)
        return torch.split_with_sizes(joined, [array.size for array in arrays])

    def _watch(self, registers: Registers) -> None:
        """Notes whether any token's last hidden state is not finite: then K and V in the cache may not be either.

        Own caches need no such note: of them nothing is gathered past a context (PagedCache).
        """
        if self._clears_unused[0] or self._last_hidden is None or self._has_own_kv:
            return
        total = registers[self._last_hidden].sum(dtype=torch.float32)
        self._clears_unused[0] = not bool(torch.isfinite(total))


def _last_product(program: Program) -> str:
    """The value that becomes logits, a rank's part of it where it is gathered; none of an encoder's."""
    if program.is_encoder:
        return ""
    name = program.ops[-1].inputs[0]
    return next((op.input for op in program.ops if isinstance(op, AllGather) and op.out == name), name)
