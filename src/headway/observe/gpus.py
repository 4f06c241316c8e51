"""The GPUs of this machine, as NVIDIA's management library (NVML) tells them: no CUDA context is made for it.

nvidia-ml-py (headway[gpu]) is asked where it is installed and a driver is there; without them there are no GPUs.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

_ROOT = Path("/")
_DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")


class Gpus(Protocol):
    """What is asked of them; testing/fake_gpus has others."""

    def total_bytes(self) -> Sequence[int]:
        """The memory of each, in the order of cuda:N."""
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
    """By nvidia-ml-py (pynvml). Raises nothing once it is made: a GPU that does not answer takes and has nothing."""

    def __init__(self, nvml: Any) -> None:
        """`nvml`: the module, initialised."""
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def total_bytes(self) -> Sequence[int]:
        """See Gpus."""
        return [int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in self._handles]

    def process_bytes(self, pids: Iterable[int]) -> Mapping[int, int]:
        """See Gpus."""
        wanted, found = frozenset(pids), {}
        for index, handle in enumerate(self._handles):
            try:
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._nvml.NVMLError:
                continue
            # usedGpuMemory is None where the driver does not say (WSL, MIG).
            num_bytes = sum(int(each.usedGpuMemory or 0) for each in running if each.pid in wanted)
            if num_bytes:
                found[index] = num_bytes
        return found


def has_driver(root: Path = _ROOT) -> bool:
    """Whether a driver of NVIDIA's seems to be there; asking torch takes seconds."""
    return any((root / name).exists() for name in _DRIVER_FILES)


def find_gpus(root: Path = _ROOT) -> Gpus:
    """This machine's; NoGpus where open_gpus() has none."""
    found = open_gpus(root)
    return NoGpus() if isinstance(found, str) else found


def open_gpus(root: Path = _ROOT) -> Gpus | str:
    """This machine's, or why nobody can tell of them; "": there is no driver, and so there are none."""
    if not has_driver(root):
        return ""
    if importlib.util.find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed"
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return NvmlGpus(nvml)
    except nvml.NVMLError as error:
        return f"NVML says: {error}"
