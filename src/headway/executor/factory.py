"""make_executor: the executor that a config names. Imports torch only where it is used."""

import os
from collections.abc import MutableMapping

from headway.config import EngineConfig
from headway.errors import InvalidConfig
from headway.executor.base import Executor, KVBuffers, Weights
from headway.executor.device import choose_device, is_cuda
from headway.executor.meeting import Meeting
from headway.executor.native import NativeExecutor, native_refusal
from headway.executor.native_writer import PlanLimits
from headway.model.program import Program
from headway.observe.machine import usable_cores

EXECUTORS: tuple[str, ...] = ("native", "torch")
"""Fastest first: auto takes the first that runs the model."""


_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SPIN_COUNT = "2000"
"""Turns that a waiting thread of torch's OpenMP stays awake, about 50 us. Its own 300,000 are milliseconds, in which it
keeps a core from whoever could use it: with other work on the machine a step took four times as long."""


def choose_executor(program: Program, config: EngineConfig) -> str:
    """native or torch.

    1. What was asked for by name is taken; native only if it runs the Program in that dtype.
    2. On a GPU, torch.
    3. auto: native, unless it does not.

    Raises:
        InvalidConfig: no such executor, or no such device.
        UnsupportedModel: native was asked for and does not run the Program; names the op.
    """
    if config.executor == "torch":
        return "torch"  # 1
    if config.executor not in ("auto", "native"):
        raise InvalidConfig(
            f"executor is {config.executor!r}; it must be auto or one of {', '.join(EXECUTORS)}", param="executor"
        )
    if is_cuda(choose_device(config)):
        return "torch"  # 2
    refusal = native_refusal(program, config.dtype)
    if refusal is None:
        return "native"
    if config.executor == "native":
        raise refusal
    return "torch"  # 3


def make_executor(
    program: Program, weights: Weights, kv: KVBuffers, config: EngineConfig, meeting: Meeting | None = None
) -> Executor:
    """Loads the weights into an executor; blocks.

    Args:
        program: checked.
        weights: its tensors.
        kv: its caches' memory, whose type is what the executor keeps K and V in; torch computes with it, too.
        config: `executor`, `device`, `dtype`, `threads`, `quantization` and the limits of a step are read.
        meeting: the group that this rank joins first, where program is its part of a model; torch's executor only.

    Raises:
        InvalidConfig: no such executor, or its package is not installed; names the extra that has it.
        TensorMismatch, UnsupportedModel, OutOfMemory: as the executor.
        RuntimeError: the other ranks did not come.
    """
    threads = config.threads or usable_cores()
    if choose_executor(program, config) == "native":
        return NativeExecutor(
            program,
            weights,
            kv,
            threads=threads,
            limits=make_limits(program, kv, config),
            quantization=config.quantization,
        )
    spin_briefly(os.environ)
    try:
        from headway.executor.torch_making import make_torch_executor
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        refusal = native_refusal(program, config.dtype) if config.executor == "auto" else None
        reason = f"the native executor does not run this: {refusal.message}; " if refusal else ""
        raise InvalidConfig(
            f"{reason}the torch executor needs PyTorch: pip install 'headway[torch]'", param="executor"
        ) from error
    limits = make_limits(program, kv, config)
    return make_torch_executor(program, weights, kv, config, limits, threads=threads, meeting=meeting)


def make_limits(program: Program, kv: KVBuffers, config: EngineConfig) -> PlanLimits:
    """What the steps of an engine of this config stay under."""
    return PlanLimits(
        max_tokens=config.max_num_batched_tokens,
        max_selected=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_context=min(config.max_model_len or program.max_position, kv.num_blocks * kv.block_size),
    )


def spin_briefly(environ: MutableMapping[str, str]) -> None:
    """Sets how long OpenMP's threads spin, where nobody did. It is read once, when torch is loaded."""
    if not any(name in environ for name in _SPIN_VARIABLES):
        environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
