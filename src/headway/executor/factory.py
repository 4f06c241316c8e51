"""make_executor: the executor that a config names. Imports torch only where it is used."""

import os
from collections.abc import MutableMapping

from headway.config import EngineConfig
from headway.errors import InvalidConfig
from headway.executor.base import Executor, KVBuffers, Weights
from headway.model.program import Program
from headway.observe.machine import usable_cores

EXECUTORS: tuple[str, ...] = ("torch",)
"""Fastest first: what auto takes the first of."""


_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SPIN_COUNT = "2000"
"""Turns that a waiting thread of torch's OpenMP stays awake, about 50 us. Its own 300,000 are milliseconds, in which it
keeps a core from whoever could use it: with other work on the machine a step took four times as long."""


def make_executor(program: Program, weights: Weights, kv: KVBuffers, config: EngineConfig) -> Executor:
    """Loads the weights into an executor; blocks.

    Args:
        program: checked.
        weights: its tensors.
        kv: its caches' memory; weights are computed with kv.dtype, which choose_dtype chose.
        config: `executor` and `threads` are read.

    Raises:
        InvalidConfig: no such executor, or its package is not installed; names the extra that has it.
        TensorMismatch, UnsupportedModel: as the executor.
    """
    name = EXECUTORS[0] if config.executor == "auto" else config.executor
    if name not in EXECUTORS:
        raise InvalidConfig(f"executor is {name!r}; it must be auto or one of {', '.join(EXECUTORS)}", param="executor")
    spin_briefly(os.environ)
    try:
        from headway.executor.torch import TorchExecutor
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InvalidConfig(
            "the torch executor needs PyTorch: pip install 'headway[torch]'", param="executor"
        ) from error
    return TorchExecutor(program, weights, kv, dtype=kv.dtype, threads=config.threads or usable_cores())


def spin_briefly(environ: MutableMapping[str, str]) -> None:
    """Sets how long OpenMP's threads spin, where nobody did. It is read once, when torch is loaded."""
    if not any(name in environ for name in _SPIN_VARIABLES):
        environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
