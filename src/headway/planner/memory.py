"""What a model needs of memory, before any of it is taken: weights, KV pool, workspace. Pure: numbers in, a plan out.

available  [ weights | workspace | KV pool: num_blocks x block_size tokens | left to the machine ]
"""

from dataclasses import dataclass

from headway.config import EngineConfig
from headway.errors import InvalidConfig, OutOfMemory
from headway.model.program import Program
from headway.observe.sizes import size_text
from headway.planner.costs import Costs

DEFAULT_KV_FRACTION = 0.25
"""Of the memory that is available, where the config says nothing."""
GPU_KV_FRACTION = 0.9
"""The same of a GPU's, which nobody else is waiting for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where a model's memory goes, in bytes, and the context that fits."""

    dtype: str
    """What most bytes of the weights are held in."""
    weights_text: str
    """What all of them are held in, for people."""
    kv_dtype: str
    weights_bytes: int
    workspace_bytes: int
    """The most that a step holds beside weights and KV."""
    kv_bytes: int
    """The whole pool; mapped lazily, charged whole."""
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    max_model_len: int
    """Tokens of prompt and output together: what was asked for, or the model's own, lowered to what the pool holds."""
    model_max_len: int
    """The model's own."""
    is_lowered: bool
    """Nothing was asked for, and the pool does not hold the model's own."""
    available_bytes: int
    windows: tuple[int | None, ...] = ()
    """How many tokens each cache's layer sees; None: all. A layer with a window keeps K and V of all tokens as well."""
    num_ranks: int = 1
    """Processes that each take so much; available_bytes is what one of them may."""

    @property
    def total_bytes(self) -> int:
        """What the model is charged."""
        return self.weights_bytes + self.workspace_bytes + self.kv_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.num_blocks * self.block_size

    def lines(self) -> list[str]:
        """The plan for a terminal, a line each."""
        num_contexts = self.num_blocks / -(-self.max_model_len // self.block_size)
        lines = [
            f"weights    {size_text(self.weights_bytes)} in {self.weights_text}",
            f"KV cache   {size_text(self.kv_bytes)}: {self.kv_tokens:,} tokens in {self.num_blocks:,} blocks of "
            f"{self.block_size}, {self.kv_bytes_per_token:,} bytes a token in {self.kv_dtype}; mapped as it is used",
            f"workspace  {size_text(self.workspace_bytes)} at most",
            f"together   {size_text(self.total_bytes)} of {size_text(self.available_bytes)} available",
            f"context    {self.max_model_len:,} tokens; the cache holds {num_contexts:,.1f} of these at once",
        ]
        if any(self.windows):
            lines.insert(2, f"windows    {_windows_text(self.windows)}; they keep K and V of all tokens")
        if self.num_ranks > 1:
            lines.insert(0, f"each of {self.num_ranks} processes (--tensor-parallel-size) holds its part:")
        if self.is_lowered:
            lines[-1] += f"; the model could {self.model_max_len:,}: give more --kv-cache-memory for these"
        return lines

    def describe(self) -> str:
        """lines() as one text."""
        return "\n".join(self.lines())


def _windows_text(windows: tuple[int | None, ...]) -> str:
    sizes = sorted({window for window in windows if window is not None})
    num_layers = sum(window is not None for window in windows)
    return f"{num_layers} of {len(windows)} layers see the last {' or '.join(f'{size:,}' for size in sizes)} tokens"


def plan_memory(
    program: Program, costs: Costs, config: EngineConfig, available_bytes: int, *, on_gpu: bool = False
) -> MemoryPlan:
    """The plan of a model.

    1. The pool is kv_cache_memory bytes, or that fraction of what is available; where it says nothing, the least of 25%
       (of a GPU 90%) of what is available, max_num_seqs x max_model_len tokens, and what weights and workspace leave.
    2. A max_model_len that was asked for must fit the model and the pool; the model's own is lowered to the pool.
    3. All of it must fit into what is available.

    Args:
        program: of the model.
        costs: what its executor makes of it: torch_costs or native_costs.
        config: max_model_len, max_num_seqs, max_num_batched_tokens, block_size and kv_cache_memory are read.
        available_bytes: executor.device.device_available_bytes() before the load.
        on_gpu: whose memory it is.

    Raises:
        InvalidConfig: max_model_len or kv_cache_memory cannot be; names the value, the limit and what to do.
        OutOfMemory: the bytes needed and had.
    """
    _check_config(config, program)
    wanted_len = config.max_model_len or program.max_position
    left = available_bytes - costs.weights_bytes - costs.workspace_bytes
    token_bytes = costs.kv_bytes_per_token
    block_bytes = token_bytes * config.block_size
    share = int((GPU_KV_FRACTION if on_gpu else DEFAULT_KV_FRACTION) * available_bytes)
    num_blocks = _kv_bytes(config, available_bytes, min(share, left), token_bytes, wanted_len) // block_bytes  # 1
    plan = MemoryPlan(
        dtype=costs.dtype,
        weights_text=costs.weights_text,
        kv_dtype=costs.kv_dtype,
        weights_bytes=costs.weights_bytes,
        workspace_bytes=costs.workspace_bytes,
        kv_bytes=num_blocks * block_bytes,
        kv_bytes_per_token=token_bytes,
        block_size=config.block_size,
        num_blocks=num_blocks,
        max_model_len=min(wanted_len, num_blocks * config.block_size),
        model_max_len=program.max_position,
        is_lowered=config.max_model_len is None and wanted_len > num_blocks * config.block_size,
        available_bytes=available_bytes,
        windows=tuple(cache.window for cache in program.caches),
        num_ranks=config.tensor_parallel_size,
    )
    _check_fits(plan, config)
    return plan


def _check_config(config: EngineConfig, program: Program) -> None:
    asked = config.max_model_len
    if asked is not None and not 1 <= asked <= program.max_position:
        raise InvalidConfig(
            f"max_model_len is {asked}; the model has {program.max_position} positions: give 1 to that many, or leave "
            "it out",
            param="max_model_len",
        )
    memory = config.kv_cache_memory
    if isinstance(memory, float) and not 0 < memory <= 1:
        raise InvalidConfig(
            f"kv_cache_memory is {memory}; a fraction is over 0 and at most 1, bytes are a whole number",
            param="kv_cache_memory",
        )
    if memory is not None and memory <= 0:
        raise InvalidConfig(f"kv_cache_memory is {memory} bytes; it must be over 0", param="kv_cache_memory")


def _kv_bytes(config: EngineConfig, available: int, most: int, token_bytes: int, max_model_len: int) -> int:
    memory = config.kv_cache_memory
    if isinstance(memory, float):
        return int(memory * available)
    if memory is not None:
        return memory // config.tensor_parallel_size
    blocks_each = -(-max_model_len // config.block_size)
    useful = config.max_num_seqs * blocks_each * config.block_size * token_bytes
    return max(0, min(most, useful))


def _who(plan: MemoryPlan) -> str:
    return "the model" if plan.num_ranks == 1 else f"each of {plan.num_ranks} processes of the model"


def _check_fits(plan: MemoryPlan, config: EngineConfig) -> None:
    block_bytes = plan.kv_bytes_per_token * plan.block_size
    needed = max(plan.total_bytes, plan.weights_bytes + plan.workspace_bytes + block_bytes)
    if needed > plan.available_bytes:  # 3
        raise OutOfMemory(
            f"{_who(plan)} needs {size_text(needed)} ({needed} bytes: weights {plan.weights_bytes} in {plan.dtype}, "
            f"workspace {plan.workspace_bytes}, KV cache {needed - plan.weights_bytes - plan.workspace_bytes}) and "
            f"{size_text(plan.available_bytes)} ({plan.available_bytes} bytes) are available: lower --kv-cache-memory, "
            "--max-num-batched-tokens or --max-num-seqs, or take a smaller model"
        )
    if plan.num_blocks < 1:
        raise InvalidConfig(
            f"kv_cache_memory is {config.kv_cache_memory}: less than one block of {plan.block_size} tokens, "
            f"which takes {block_bytes * plan.num_ranks} bytes: give at least that",
            param="kv_cache_memory",
        )
    asked = config.max_model_len
    if asked is not None and asked > plan.kv_tokens:  # 2
        blocks = -(-asked // plan.block_size)
        raise InvalidConfig(
            f"max_model_len is {asked}, the KV cache of {plan.kv_bytes * plan.num_ranks} bytes holds {plan.kv_tokens} "
            "tokens: lower --max-model-len, or give --kv-cache-memory at least "
            f"{blocks * block_bytes * plan.num_ranks}",
            param="max_model_len",
        )
