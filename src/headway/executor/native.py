"""NativeExecutor: a Program on our own kernels, a step in one call without the interpreter lock. No torch.

What a row gives depends on that row's sequence alone: not on the batch, the chunks, the blocks or the threads.
"""

from collections.abc import Collection

import numpy as np

from headway import _native
from headway.config import Dtype, Quantization
from headway.errors import HeadwayError, InvalidConfig, InvariantBroken, OutOfMemory, UnsupportedModel
from headway.executor.base import (
    Bool,
    EncoderStep,
    Float32,
    Int32,
    Int64,
    KVBuffers,
    Sampled,
    StepArrays,
    Weights,
)
from headway.executor.encoder_step import place_whole
from headway.executor.native_plan import compile_plan
from headway.executor.native_weights import MatrixLoader
from headway.executor.native_writer import ALL_NATIVE_FUSIONS, NativeFusion, PlanLimits
from headway.executor.op_times import OpTime, between
from headway.model.ops import AllGather, AllReduce, Attention, Embed
from headway.model.program import Program
from headway.planner.native_costs import router_names, vocabulary_names

BLOCK_MULTIPLE = 16
KV_DTYPES: tuple[str, ...] = ("float16", "bfloat16", "int8")


class NativeExecutor:
    """A Program over its weights and caches; one step at a time.

    Args:
        program: checked.
        weights: tensors under the Program's names; read and packed here, once, and let go.
        kv: its memory is used as it is and must outlive the executor; dtype one of KV_DTYPES, block_size a multiple of
            16.
        threads: of a step, the caller's own included; they sleep between steps.
        limits: of a step.
        quantization: makes matrices of a 16- or 32-bit model narrower.
        fusions: what native_plan.py fuses.

    Raises:
        InvalidConfig: block_size, the KV type, HEADWAY_ISA, quantization of a quantised model.
        TensorMismatch: a weight of a wrong shape.
        UnsupportedModel: an op or a tensor type that this executor does not run.
        OutOfMemory: names the bytes needed and had.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        kv: KVBuffers,
        *,
        threads: int,
        limits: PlanLimits,
        quantization: Quantization | None = None,
        fusions: Collection[NativeFusion] = ALL_NATIVE_FUSIONS,
    ) -> None:
        _check_kv(kv)
        self.vocab_size = program.vocab_size
        self._block_size = kv.block_size
        try:
            self._workers = _native.Workers(threads)
            loader = MatrixLoader(
                weights,
                program.weights,
                self._workers,
                quantization=quantization,
                vocabulary=vocabulary_names(program),
                keeps_floats=program.is_encoder,
                unquantised=router_names(program),
            )
            self._plan, self._labels = compile_plan(program, loader, kv, limits, fusions, self._workers)
        except ValueError as error:
            raise InvalidConfig(str(error)) from error
        except MemoryError as error:
            raise OutOfMemory(f"the workspace of steps of {limits.max_tokens} tokens: {error}") from error
        self.weights_bytes = loader.num_bytes
        """Of the matrices as they are held."""

    @property
    def workspace_bytes(self) -> int:
        """What steps need beside weights and KV."""
        return int(self._plan.num_bytes)

    def execute(self, step: StepArrays) -> Float32:
        """Runs the step, writes its K and V. Logits [num_logit_rows, vocab_size], valid until the next call."""
        try:
            self._plan.execute(*_arguments(step, step.logit_rows))
        except ValueError as error:
            raise InvariantBroken(str(error)) from error
        logits: Float32 = self._plan.logits()
        return logits

    def encode(self, step: EncoderStep) -> Float32:
        """Runs a step of an encoder: see EncodingExecutor. Its K and V are written over kv, and void after it."""
        placed = place_whole(step, self._block_size)
        token_ids, *rest = _arguments(placed, placed.logit_rows)
        try:
            self._plan.encode(token_ids, step.token_types, *rest)
        except ValueError as error:
            raise InvariantBroken(str(error)) from error
        vectors: Float32 = self._plan.logits()
        return vectors

    def execute_and_sample(
        self,
        step: StepArrays,
        sampled_rows: Int32,
        behind_rows: Int32,
        behind_is_finite: Bool,
        sampler: _native.Sampler,
        rows: Int32,
        num_tokens: Int32,
        sampled: Sampled,
    ) -> None:
        """Runs the step and samples: see SamplingExecutor. Raises InvariantBroken before anything is written."""
        try:
            self._plan.sample(
                *_arguments(step, sampled_rows),
                behind_rows,
                behind_is_finite,
                sampler,
                rows,
                num_tokens,
                sampled.token_ids,
                sampled.is_finite,
                sampled.logprobs,
                sampled.top_ids,
                sampled.top_logprobs,
            )
        except ValueError as error:
            raise InvariantBroken(str(error)) from error

    def time_ops(self, is_on: bool) -> None:
        """Whether steps note when each stage begins: see TimedExecutor."""
        self._plan.time_stages(is_on)

    def op_times(self) -> list[OpTime]:
        """Of the last step's stages: each is done by all threads before the next one begins."""
        times_ns = self._plan.stage_times()
        return between(self._labels, times_ns) if times_ns else []


def _arguments(step: StepArrays, logit_rows: Int32) -> tuple[Int32 | Int64, ...]:
    """As Plan.execute and Plan.sample take them."""
    return (
        step.token_ids,
        step.positions,
        step.slots,
        step.query_starts,
        step.context_lens,
        np.ascontiguousarray(step.block_tables),
        logit_rows,
    )


def _check_kv(kv: KVBuffers) -> None:
    if kv.block_size % BLOCK_MULTIPLE:
        raise InvalidConfig(
            f"block_size is {kv.block_size}; the native executor needs a multiple of {BLOCK_MULTIPLE}: give one, or "
            "take --executor torch",
            param="block_size",
        )
    if kv.dtype not in KV_DTYPES:
        raise InvalidConfig(
            f"the KV cache is {kv.dtype}; the native executor keeps K and V in {' or '.join(KV_DTYPES)}",
            param="kv_cache_dtype",
        )


def native_refusal(program: Program, dtype: Dtype) -> HeadwayError | None:
    """Why this executor does not run the Program in this dtype; None: it does."""
    for op in program.ops:
        if isinstance(op, Embed) and op.index == "token_type" and not program.is_encoder:
            return UnsupportedModel(
                "token types of a language model are not supported by the native executor: take --executor torch"
            )
        if isinstance(op, AllReduce | AllGather):
            return UnsupportedModel("a part of a model is not run by the native executor: take --executor torch")
        if isinstance(op, Attention) and op.causal == (op.cache_id is None):
            return UnsupportedModel(
                "attention that is not causal, to a cache, is not supported by the native executor: take --executor "
                "torch"
            )
    if dtype not in ("auto", "bfloat16"):
        return InvalidConfig(
            f"dtype is {dtype}; the native executor holds weights in bfloat16 or in 8 or 4 bits, as the file has them: "
            "leave --dtype out, or take --executor torch",
            param="dtype",
        )
    return None
