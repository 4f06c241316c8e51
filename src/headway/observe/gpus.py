"""The GPUs of this machine, as NVIDIA's management library (NVML) tells them: no CUDA context is made for it.

nvidia-ml-py (headway[gpu]) is asked where it is installed and a driver is there; without them there are no GPUs.
"""

import functools
import importlib
import importlib.util
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

logger = logging.getLogger(__name__)

_ROOT = Path("/")
_DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")


class Gpus(Protocol):
    """What is asked of them; testing/fake_gpus has others."""

    def total_bytes(self) -> Sequence[int]:
        """The memory of each, in the order of cuda:N; 0: it does not say."""
        ...

    def process_bytes(self, pids: Iterable[int]) -> Mapping[int, int]:
        """What the processes take on each, by its number; those on which they take nothing are left out."""
        ...


class NoGpus:
    """A machine without."""

    def total_bytes(self) -> Sequence[int]:
        """None."""
        return ()

    def process_bytes(self, pids: Iterable[int]) -> Mapping[int, int]:
        """Nothing."""
        return {}


class NvmlGpus:
    """By nvidia-ml-py (pynvml). Raises nothing once it is made: a GPU that does not answer has and takes nothing.

    1. Those of CUDA_VISIBLE_DEVICES, in its order, are cuda:0, 1, ...; else all, in that of their PCI buses.
    2. Of one that is divided (MIG) it is the first instance that CUDA computes on: that one's memory counts.
    3. What the driver keeps for itself is left out where it says so (memory of version 2).
    """

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        """
        Args:
            nvml: the module, initialised. Raises its NVMLError where it can not even count.
            visible: CUDA_VISIBLE_DEVICES; None: it is not set.
        """
        self._nvml = nvml
        num_gpus = nvml.nvmlDeviceGetCount()
        chosen = map(str, range(num_gpus)) if visible is None else _names(visible)
        self._handles: list[Any] = []
        """None: it does not answer, and keeps its number."""
        for name in chosen:
            if name.isdecimal() and int(name) >= num_gpus:
                break  # as CUDA reads it: what stands behind an unknown one is not visible either
            self._handles.append(self._ask(self._find, name))

    def total_bytes(self) -> Sequence[int]:
        """See Gpus."""
        return [0 if handle is None else self._ask(self._total, handle) or 0 for handle in self._handles]

    def process_bytes(self, pids: Iterable[int]) -> Mapping[int, int]:
        """See Gpus."""
        wanted, found = frozenset(pids), {}
        for index, handle in enumerate(self._handles):
            running = () if handle is None else self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            # usedGpuMemory is None where the driver does not say (WSL, MIG, another's process).
            num_bytes = sum(int(each.usedGpuMemory or 0) for each in running if each.pid in wanted)
            if num_bytes:
                found[index] = num_bytes
        return found

    def _ask(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """None: NVML tells it not: no permission, not supported, the GPU has fallen off the bus."""
        try:
            return call(argument)
        except self._nvml.NVMLError as error:
            logger.debug("NVML: %s(%s): %s", getattr(call, "__name__", call), argument, error)
            return None

    def _find(self, name: str) -> Any:
        """By its number or UUID; of a divided one its first instance."""
        nvml = self._nvml
        if not name.isdecimal():
            return nvml.nvmlDeviceGetHandleByUUID(name)
        handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return handle
        instances = (
            self._ask(functools.partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle), number)
            for number in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0)
        )
        return next((instance for instance in instances if instance is not None), None)

    def _total(self, handle: Any) -> int:
        """What processes may take of it."""
        memory = self._ask(self._memory_v2, handle)
        if memory is None:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        return int(memory.total) - int(memory.reserved)

    def _memory_v2(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)


def _names(visible: str) -> list[str]:
    """The parts of CUDA_VISIBLE_DEVICES up to the first that is no number and no UUID."""
    names = [name.strip() for name in visible.split(",")]
    return list(itertools.takewhile(lambda name: name.isdecimal() or name.startswith(("GPU-", "MIG-")), names))


def has_driver(root: Path = _ROOT) -> bool:
    """Whether a driver of NVIDIA's seems to be there; asking torch takes seconds."""
    return any((root / name).exists() for name in _DRIVER_FILES)


def find_gpus(root: Path = _ROOT) -> Gpus:
    """This machine's; NoGpus where open_gpus() has none."""
    found = open_gpus(root)
    if not isinstance(found, str):
        return found
    if found:
        logger.warning("a driver of NVIDIA's is there, and the memory of its GPUs is not bounded: %s", found)
    return NoGpus()


def open_gpus(root: Path = _ROOT) -> Gpus | str:
    """This machine's, or why nobody can tell of them; "": there is no driver, and so there are none."""
    if not has_driver(root):
        return ""
    if importlib.util.find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed"
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return NvmlGpus(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        return f"NVML says: {error}"
