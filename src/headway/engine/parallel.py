"""RankPart: what one rank of a group loads, and its share of memory and threads. The same for all ranks: each makes it.

A model is loaded whole where tensor_parallel_size is 1: then the only part is all of it.
"""

from dataclasses import dataclass, replace

from headway.cache.kv_store import KVStore
from headway.config import EngineConfig
from headway.errors import InvalidConfig
from headway.executor.base import KVBuffers, Weights
from headway.executor.device import DeviceKV, is_cuda
from headway.executor.shard import shard_program
from headway.executor.shard_weights import ShardWeights
from headway.model.program import Program
from headway.observe.machine import usable_cores


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank's Program with its weights."""

    program: Program
    weights: Weights


def make_kv(
    program: Program, num_blocks: int, block_size: int, dtype: str, device: str, *, available: int | None = None
) -> KVBuffers:
    """The memory of a rank's KV cache. Raises OutOfMemory, which names `available` bytes."""
    if is_cuda(device):
        return DeviceKV(num_blocks, block_size, dtype)
    return KVStore(program.caches, num_blocks=num_blocks, block_size=block_size, dtype=dtype, available_bytes=available)


def check_parallel(config: EngineConfig) -> None:
    """Raises InvalidConfig for a number of ranks that cannot be, whatever the model. `device` is chosen."""
    size = config.tensor_parallel_size
    if size < 1:
        raise InvalidConfig(f"tensor_parallel_size is {size}; it must be at least 1", param="tensor_parallel_size")
    if size > 1 and config.executor != "torch" and not is_cuda(config.device):
        raise InvalidConfig(
            f"tensor_parallel_size is {size}, which only the torch executor has, and executor is {config.executor}: "
            "give --executor torch too, or leave --tensor-parallel-size out",
            param="tensor_parallel_size",
        )


def make_part(program: Program, weights: Weights, rank: int, size: int) -> RankPart:
    """What rank `rank` of `size` loads. Raises as shard_program."""
    if size == 1:
        return RankPart(program, weights)
    shard = shard_program(program, rank, size)
    return RankPart(shard.program, ShardWeights(weights, shard.parts))


def config_of_rank(config: EngineConfig) -> EngineConfig:
    """The config with one rank's share of the threads. Raises as check_parallel."""
    check_parallel(config)
    size = config.tensor_parallel_size
    return config if size == 1 else replace(config, threads=max(1, (config.threads or usable_cores()) // size))
