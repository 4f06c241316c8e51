"""KVStore: the memory behind the KV cache's block numbers. Made at load; the executor maps it, nobody else reads it.

Each cache id has a mapping of its own for K and one for V:

    K of cache 0   [ block 0 | block 1 | ... | block num_blocks - 1 ]
    V of cache 0   [ block 0 | ...                                  ]     each block is
    K of cache 1   [ ...                                            ]     [block_size, num_kv_heads, dim] of `dtype`

Where V is a part of K (CacheSpec.v_in_k) it has none. The mappings are anonymous and private: the kernel gives zeroed
pages as blocks are first written, so an idle cache costs nothing yet; the planner charges it whole.
"""

import mmap
from collections.abc import Sequence

from headway.errors import OutOfMemory
from headway.model.program import CacheSpec

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_SCALE_BYTES = 4
"""int8 has a float32 scale for each token and head, behind the values of its mapping."""


def bytes_per_token(spec: CacheSpec, dtype: str) -> tuple[int, int]:
    """Of K and of V. Keys are padded as native/src/exec/exec_kernels.h has them: bfloat16 to 2, int8 to 4 columns."""
    size, scale = _DTYPE_BYTES[dtype], _SCALE_BYTES if dtype == "int8" else 0
    padding = {"bfloat16": 2, "int8": 4}.get(dtype, 1)
    k_dim = -(-spec.qk_dim // padding) * padding
    v_bytes = 0 if spec.v_in_k else spec.v_dim * size + scale
    return spec.num_kv_heads * (k_dim * size + scale), spec.num_kv_heads * v_bytes


class KVStore:
    """executor.base.KVBuffers over anonymous memory. Raises OutOfMemory that names the bytes needed and had.

    Args:
        available_bytes: what there is, for the message; None where it is not known.
    """

    def __init__(
        self,
        caches: Sequence[CacheSpec],
        *,
        num_blocks: int,
        block_size: int,
        dtype: str,
        available_bytes: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        num_slots = num_blocks * block_size
        sizes = [(num_slots * k, num_slots * v) for k, v in (bytes_per_token(spec, dtype) for spec in caches)]
        self.num_bytes = sum(k_bytes + v_bytes for k_bytes, v_bytes in sizes)
        """All buffers together."""
        self._buffers: list[tuple[memoryview, memoryview]] = []
        try:
            for k_bytes, v_bytes in sizes:
                self._buffers.append((_map(k_bytes), _map(v_bytes)))
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            self._buffers.clear()
            had = "" if available_bytes is None else f"; {available_bytes} are available"
            raise OutOfMemory(
                f"the KV cache needs {self.num_bytes} bytes ({num_blocks} blocks of {block_size} tokens) and the "
                f"system does not give them{had}: lower --kv-cache-memory or --max-model-len"
            ) from error

    def buffers(self, cache_id: int) -> tuple[memoryview, memoryview]:
        """K and V of a cache id: writable bytes, see the module's docstring."""
        return self._buffers[cache_id]

    def close(self) -> None:
        """Lets go of the memory; it is returned once the executor's views of it are gone too."""
        self._buffers.clear()


def _map(num_bytes: int) -> memoryview:
    """Zeroed memory that is given page by page. Private: shared anonymous memory would count as a file of tmpfs."""
    if num_bytes == 0:
        return memoryview(bytearray())
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return memoryview(mmap.mmap(-1, num_bytes, flags=flags))
