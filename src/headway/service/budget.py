"""How much residents may take in all: the machine's memory, each GPU's, and places for models."""

import logging

from headway.config import PoolConfig
from headway.errors import InvalidConfig
from headway.observe.gpus import Gpus, find_gpus
from headway.observe.machine import total_memory_bytes
from headway.observe.sizes import size_text
from headway.service.events import CPU, MODELS

logger = logging.getLogger(__name__)

DEFAULT_SHARE = 0.8
"""Of a memory, where the config says nothing: the rest is for the server itself, files' pages and other programs."""


def make_budget(config: PoolConfig, *, total_bytes: int | None = None, gpus: Gpus | None = None) -> dict[str, int]:
    """The limit of each resource.

    Args:
        config: memory_limit, gpu_memory_limit and max_models are read.
        total_bytes: of the machine; None: what it, or the control group, has.
        gpus: None: those that NVML tells.

    Raises:
        InvalidConfig: a limit that can not be, or one for GPUs where there is none.
    """
    total = total_memory_bytes() if total_bytes is None else total_bytes
    budget = {CPU: _limit(config.memory_limit, total, "memory_limit", "this machine, or its control group,")}
    sizes = (gpus or find_gpus()).total_bytes()
    if config.gpu_memory_limit is not None and not sizes:
        raise InvalidConfig(
            f"gpu_memory_limit is {config.gpu_memory_limit}, and no GPU was found: leave it out, or install NVIDIA's "
            "driver and nvidia-ml-py (pip install 'headway[gpu]')",
            param="gpu_memory_limit",
        )
    for index, size in enumerate(sizes):
        if size:
            budget[f"cuda:{index}"] = _limit(config.gpu_memory_limit, size, "gpu_memory_limit", f"GPU {index}")
        elif isinstance(config.gpu_memory_limit, int):
            told = config.gpu_memory_limit  # it does not say what it has: the caller does
            budget[f"cuda:{index}"] = _limit(told, told, "gpu_memory_limit", f"GPU {index}")
        else:
            logger.warning("GPU %d does not tell its memory: it is not bounded; give --gpu-memory-limit bytes", index)
    if config.max_models is not None:
        if config.max_models < 1:
            raise InvalidConfig(f"max_models is {config.max_models}; it must be at least 1", param="max_models")
        budget[MODELS] = config.max_models
    return budget


def _limit(limit: int | float | None, total: int, name: str, whose: str) -> int:
    if limit is None:
        return int(DEFAULT_SHARE * total)
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise InvalidConfig(f"{name} is {limit}; a fraction is over 0 and at most 1, bytes are whole", param=name)
        return int(limit * total)
    if not 0 < limit <= total:
        raise InvalidConfig(
            f"{name} is {limit} bytes ({size_text(limit)}); {whose} has {total} ({size_text(total)}): give over 0 and "
            "at most that, or a fraction such as 0.8",
            param=name,
        )
    return limit
