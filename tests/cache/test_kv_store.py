import mmap

import numpy as np
import pytest

from headway.cache.kv_store import KVStore
from headway.errors import OutOfMemory
from headway.model.program import CacheSpec

SPECS = [
    CacheSpec(cache_id=0, num_kv_heads=2, qk_dim=8, v_dim=4),
    CacheSpec(cache_id=1, num_kv_heads=1, qk_dim=8, v_dim=8),
]


@pytest.mark.parametrize(("dtype", "num_bytes"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_each_cache_has_zeroed_writable_memory_of_its_own(dtype, num_bytes):
    store = KVStore(SPECS, num_blocks=3, block_size=4, dtype=dtype)
    sizes = [[len(buffer) for buffer in store.buffers(cache_id)] for cache_id in (0, 1)]
    assert sizes == [[12 * 16 * num_bytes, 12 * 8 * num_bytes], [12 * 8 * num_bytes, 12 * 8 * num_bytes]]
    assert store.num_bytes == sum(map(sum, sizes))
    arrays = [np.frombuffer(buffer, np.uint8) for cache_id in (0, 1) for buffer in store.buffers(cache_id)]
    assert not any(array.any() for array in arrays)
    arrays[0][:] = 7
    assert not any(array.any() for array in arrays[1:])
    assert store.buffers(0)[0][5] == 7
    store.close()
    assert arrays[0][5] == 7  # a view that an executor still has stays good


def test_memory_is_given_as_it_is_written():
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    store = KVStore(SPECS, num_blocks=1_000_000, block_size=16, dtype="float32")
    assert store.num_bytes == 16_000_000 * (24 + 16) * 4
    assert resident_bytes() - before < 50_000_000


def test_what_the_system_does_not_give_is_named_in_bytes():
    with pytest.raises(OutOfMemory, match=r"needs 2560000000000000000 bytes .* 12345 are available"):
        KVStore(SPECS, num_blocks=10**15, block_size=16, dtype="float32", available_bytes=12345)
