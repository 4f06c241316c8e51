"""What a model needs of memory, before it is loaded: from its memory plan where Headway's own engine runs it, else from
the size of its files.

A language model's KV cache takes 25% of the budget where that is free (kv_cache_memory unset), and less beside others,
but never so little that the context it promises, or a quarter of the share, would not fit: so what a model can do does
not depend on who else is there, only how many requests it does at once.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headway.config import EngineConfig, ModelConfig
from headway.errors import HeadwayError, OutOfMemory
from headway.observe.gpus import has_driver
from headway.service.events import CPU, Amounts, Need
from headway.service.frameworks import PROCESS_BYTES, Framework, run_of

EngineTask = Literal["generate", "encode"]
CUDA_HOST_BYTES = 1536 << 20
"""Main memory of a process that computes on a GPU."""
FILES_FACTOR = 1.3
"""Of the bytes of a model's files: what frameworks take for it."""
_LEAST_KV_SHARE = 0.25
_BYTES_PER_SECOND = 200e6
_LEAST_LOAD_S = 0.5
_MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class ModelEstimate:
    """A need, and the part of it that is the KV cache's."""

    need: Need
    kv_bytes: int | None = None
    """Of the least need; None: its worker is not told."""


def estimate_model(model: ModelConfig, path: Path, task: EngineTask | None, budget: Amounts) -> ModelEstimate:
    """The need of a model whose files are at `path`. Blocks.

    Args:
        model: its config.
        path: its files.
        task: of Headway's own engine; None: something else runs it.
        budget: of each device.

    Raises OutOfMemory: alone it does not fit into the budget. Other faults of its files are its worker's to tell.
    """
    framework = run_of(model)
    if framework.is_elsewhere or framework.kind == "ensemble":
        return ModelEstimate(Need(num_places=0, load_s=_LEAST_LOAD_S))
    if task is not None:
        try:
            planned = _plan(model, path, task, budget)
        except OutOfMemory:
            raise
        except HeadwayError:
            planned = None
        if planned is not None:
            return planned
    return ModelEstimate(_estimate_files(model, path, framework))


def _estimate_files(model: ModelConfig, path: Path, framework: Framework) -> Need:
    told = model.residency.expected_bytes
    num_bytes = files_bytes(path)
    device = device_of(model)
    one = int(num_bytes * FILES_FACTOR) + framework.process_bytes + _kv_option_bytes(model, framework)
    least = told or one * model.infer.instances
    amounts = {device: least} if device == CPU else {device: least, CPU: CUDA_HOST_BYTES * model.infer.instances}
    return Need(amounts, device, load_s=expected_load_s(model, num_bytes), is_guess=told is None)


def _kv_option_bytes(model: ModelConfig, framework: Framework) -> int:
    """The KV cache that it is told to have."""
    if framework.kv_cache_option is None:
        return 0
    gib = model.options.get(framework.kv_cache_option, 1)
    return gib << 30 if isinstance(gib, int) else 0


def device_of(model: ModelConfig) -> str:
    """As its options say, for frameworks that take one; auto is the predictor's own choice, which is the CPU here."""
    device = model.options.get("device")
    if not isinstance(device, str) or not device.startswith("cuda"):
        return CPU
    return device if ":" in device else "cuda:0"


def expected_load_s(model: ModelConfig, num_bytes: int) -> float:
    """As it was told, else as long as reading so many bytes takes."""
    told = model.residency.expected_load_s
    return _LEAST_LOAD_S + num_bytes / _BYTES_PER_SECOND if told is None else told


def files_bytes(path: Path) -> int:
    """Of a file, or of all in a folder; links count as what they lead to, and what can not be read as nothing."""
    if not path.is_dir():
        return _file_bytes(path)
    total = 0
    for number, each in enumerate(path.rglob("*")):
        if number >= _MAX_FILES:
            break
        total += _file_bytes(each)
    return total


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _plan(model: ModelConfig, path: Path, task: EngineTask, budget: Amounts) -> ModelEstimate | None:
    """From the memory plan; None: there is no budget of its device."""
    from headway.engine.encoder_loading import plan_encoder_model
    from headway.engine.loading import plan_language_model
    from headway.planner.memory import DEFAULT_KV_FRACTION

    device = engine_device(model.engine)
    available = budget.get(device)
    if available is None:
        return None
    config = replace(model.engine, device=device)
    load_s = expected_load_s(model, files_bytes(path))
    if task == "encode":
        encoder = plan_encoder_model(path, config, available)
        return ModelEstimate(_need(encoder.total_bytes, device, 1, load_s))
    plan = plan_language_model(path, config, available)
    need = _need((plan.weights_bytes + plan.workspace_bytes) * plan.num_ranks, device, plan.num_ranks, load_s)
    context_blocks = -(-plan.max_model_len // plan.block_size)
    context_bytes = context_blocks * plan.block_size * plan.kv_bytes_per_token * plan.num_ranks
    kv_bytes = plan.kv_bytes * plan.num_ranks
    if config.kv_cache_memory is None:  # alone on a GPU it would take nearly all, and nothing fitted beside it
        kv_bytes = min(kv_bytes, max(context_bytes, int(DEFAULT_KV_FRACTION * available)))
    return with_cache(need, kv_bytes=kv_bytes, context_bytes=context_bytes)


def _need(num_bytes: int, device: str, num_processes: int, load_s: float) -> Need:
    if device == CPU:
        return Need({CPU: num_bytes + num_processes * PROCESS_BYTES}, load_s=load_s)
    return Need({device: num_bytes, CPU: num_processes * CUDA_HOST_BYTES}, device, load_s=load_s)


def with_cache(need: Need, *, kv_bytes: int, context_bytes: int) -> ModelEstimate:
    """`need` with a KV cache: at least one context and a quarter of `kv_bytes`, up to all of these where there is room.

    Args:
        need: of all else.
        kv_bytes: what the plan gives the cache, alone in the budget.
        context_bytes: of the tokens that one request may have.
    """
    least = min(kv_bytes, max(context_bytes, int(_LEAST_KV_SHARE * kv_bytes)))
    amounts = {**need.amounts, need.device: need.amounts.get(need.device, 0) + least}
    return ModelEstimate(replace(need, amounts=amounts, more_bytes=kv_bytes - least), least)


def engine_device(config: EngineConfig) -> str:
    """cpu or cuda:N, as executor/device.choose_device would say, without asking torch."""
    if config.device != "auto":
        return "cuda:0" if config.device == "cuda" else config.device
    is_native = config.executor == "native" or config.quantization is not None or config.kv_cache_dtype == "int8"
    has_gpu = not is_native and has_driver() and importlib.util.find_spec("torch") is not None
    return "cuda:0" if has_gpu else CPU


def need_of_info(info: Mapping[str, Any]) -> Need | None:
    """What a worker of Headway's engine says that it took (Ready.info), its KV cache included; None: another worker."""
    sizes = [info.get(name) for name in ("weights_bytes", "workspace_bytes", "kv_cache_bytes")]
    num_bytes = [size for size in sizes if isinstance(size, int)]
    if len(num_bytes) < len(sizes):
        return None
    return _need(sum(num_bytes), str(info.get("device", CPU)), int(info.get("tensor_parallel_size", 1)), _LEAST_LOAD_S)
