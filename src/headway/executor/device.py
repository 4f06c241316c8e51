"""Where a model is computed: on the CPU, or on one CUDA device by torch. PyTorch is loaded only where it is asked."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from headway.config import EngineConfig
from headway.errors import InvalidConfig, InvariantBroken
from headway.observe.gpus import has_driver
from headway.observe.machine import available_memory_bytes

CPU = "cpu"
DEVICE_FRACTION = 0.95
"""Of a device's free memory; the rest is for what is not planned: captured graphs, the libraries' own buffers."""
_NAME = re.compile(r"cuda(?::(\d+))?")
_LEAST_BFLOAT16 = (8, 0)
"""The compute capability from which bfloat16 is multiplied."""


def choose_device(config: EngineConfig, root: Path = Path("/")) -> str:
    """cpu or cuda:N.

    1. The CPU where it was asked for.
    2. The CUDA device that was asked for, if torch can use it.
    3. auto: the first CUDA device; the CPU where there is none, or where something is asked for that only the native
       executor has.

    Args:
        config: device, executor, quantization and kv_cache_dtype are read.
        root: of the file system.

    Raises:
        InvalidConfig: no such device, or torch cannot use it; says what torch reports.
    """
    asked = config.device
    if asked == CPU:
        return CPU  # 1
    if asked == "auto":
        is_native = config.executor == "native" or config.quantization is not None or config.kv_cache_dtype == "int8"
        may_be = not is_native and has_driver(root) and importlib.util.find_spec("torch") is not None
        return "cuda:0" if may_be and _refusal(0) is None else CPU  # 3
    match = _NAME.fullmatch(asked)
    if match is None:
        raise InvalidConfig(f"device is {asked!r}; it must be auto, cpu, cuda or cuda:N", param="device")
    if config.executor == "native":
        raise InvalidConfig(
            f"device is {asked}, and the native executor computes on the CPU: leave --executor out, or take torch",
            param="device",
        )
    index = int(match.group(1) or 0)
    refusal = _refusal(index)
    if refusal is not None:
        raise InvalidConfig(f"device is {asked}, which cannot be used: {refusal}", param="device")
    return f"cuda:{index}"  # 2


def is_cuda(device: str) -> bool:
    """Whether choose_device() gave a CUDA device."""
    return device != CPU


def device_available_bytes(device: str) -> int:
    """What a model may take there: of the machine's memory, or of the device's."""
    if not is_cuda(device):
        return available_memory_bytes()
    import torch

    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return int(free * DEVICE_FRACTION)


def model_available_bytes(config: EngineConfig) -> int:
    """What the model may take of its device's memory: all that is available, or memory_limit if that is less."""
    available = device_available_bytes(config.device)
    return available if config.memory_limit is None else min(available, config.memory_limit)


def multiplies_bfloat16(device: str) -> bool:
    """Whether the CUDA device has instructions for it."""
    import torch

    capability: tuple[int, int] = torch.cuda.get_device_capability(torch.device(device))
    return capability >= _LEAST_BFLOAT16


@dataclass(slots=True)
class DeviceKV:
    """KVBuffers of a cache that the executor keeps in memory of its device: sizes and no memory."""

    num_blocks: int
    block_size: int
    dtype: str

    def buffers(self, cache_id: int) -> tuple[memoryview, memoryview]:
        """None here."""
        raise InvariantBroken(f"K and V of cache {cache_id} were asked for, and they are on the device")


def _refusal(index: int) -> str | None:
    """Why torch cannot use CUDA device `index`, in torch's words; None: it can."""
    try:
        import torch
    except ModuleNotFoundError:
        return "PyTorch is not installed: pip install 'headway[torch]', in a build for CUDA"
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (AssertionError, RuntimeError) as error:
            return f"PyTorch {torch.__version__} reports: {str(error).splitlines()[0]}"
        return f"PyTorch {torch.__version__} finds no CUDA device"
    count = torch.cuda.device_count()
    if index >= count:
        return f"PyTorch finds {count} CUDA devices, cuda:0 to cuda:{count - 1}"
    return None
