"""What loads of language models and of encoders share: progress, weights that tell how much of them was read, costs."""

import logging
import math
import time
from collections.abc import Callable, Mapping

import numpy as np

import headway_wire as wire
from headway.checkpoint.checkpoint import Checkpoint
from headway.checkpoint.match import match_tensors
from headway.checkpoint.raw import RawTensor
from headway.checkpoint.weights import MappedWeights, ZeroFilledWeights
from headway.config import EngineConfig
from headway.errors import InvalidConfig
from headway.executor.base import Float32, Weights
from headway.executor.device import choose_device, is_cuda
from headway.executor.dtype import choose_dtype
from headway.executor.factory import choose_executor
from headway.model.program import Program
from headway.observe.machine import isa_flags, usable_cores
from headway.planner.costs import Costs
from headway.planner.native_costs import native_costs
from headway.planner.torch_costs import torch_costs

logger = logging.getLogger(__name__)

Report = Callable[[wire.Loading], None]
FileWeights = MappedWeights | ZeroFilledWeights
MAX_THREADS = 4096
_REPORT_INTERVAL_S = 0.1


class LoadProgress:
    """Turns phases into Loading messages with their time."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._started_at = time.monotonic()
        self._told_at = 0.0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def tell(self, phase: str, fraction: float | None = None) -> None:
        self._told_at = self.elapsed_s
        self._report(wire.Loading(phase=phase, fraction=fraction, elapsed_s=self._told_at))

    def tell_often(self, phase: str, fraction: float) -> None:
        """tell(), unless that was just done."""
        if self.elapsed_s - self._told_at >= _REPORT_INTERVAL_S:
            self.tell(phase, fraction)


class ReportedWeights:
    """Weights that tell how much of them was read, by elements."""

    def __init__(self, weights: Weights, progress: LoadProgress) -> None:
        self._weights = weights
        self._progress = progress
        self._num_elements = sum(int(np.prod(shape, dtype=np.int64)) for shape in weights.shapes().values())
        self._num_read = 0

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._weights.shapes()

    def read(self, name: str) -> Float32:
        tensor = self._weights.read(name)
        self._note(tensor.size)
        return tensor

    def raw(self, name: str) -> RawTensor:
        tensor = self._weights.raw(name)
        self._note(math.prod(tensor.shape))
        return tensor

    def release(self, name: str, rows: tuple[int, int] | None = None) -> None:
        self._weights.release(name, rows)

    def _note(self, num_elements: int) -> None:
        self._num_read += num_elements
        self._progress.tell_often("read", min(1.0, self._num_read / max(1, self._num_elements)))


def check_threads(config: EngineConfig) -> None:
    """Raises InvalidConfig for a number of threads that cannot be."""
    if config.threads is not None and not 1 <= config.threads <= MAX_THREADS:
        raise InvalidConfig(
            f"threads is {config.threads}; it must be at least 1 and at most {MAX_THREADS}", param="threads"
        )


def match_weights(program: Program, checkpoint: Checkpoint, config: EngineConfig) -> tuple[FileWeights, list[str]]:
    """The weights that the program wants, and what did not match (only without `strict`)."""
    wanted = program.weights
    unmatched = match_tensors(wanted, checkpoint.weights, strict=config.strict)
    for line in unmatched:
        logger.warning("loaded without strictness: %s", line)
    return (ZeroFilledWeights(wanted, checkpoint.weights) if unmatched else checkpoint.weights), unmatched


def make_costs(program: Program, checkpoint: Checkpoint, weights: FileWeights, config: EngineConfig) -> Costs:
    """What the executor that the config names makes of the model."""
    if choose_executor(program, config) == "native":
        types = {name: weights.type_of(name) for name in program.weights}
        return native_costs(program, types, config, config.threads or usable_cores())
    device = choose_device(config)
    dtype = choose_dtype(config.dtype, checkpoint.shape.dtype, isa_flags(), device)
    return torch_costs(program, dtype, config, on_gpu=is_cuda(device))
