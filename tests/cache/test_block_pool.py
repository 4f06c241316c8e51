import pytest

from headway.cache.block_pool import BlockPool
from headway.errors import InvariantBroken


def test_blocks_come_in_order_and_the_last_freed_comes_first():
    pool = BlockPool(6)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1, 0])
    assert pool.num_free == 5
    assert pool.allocate(4) == [0, 1, 3, 4]
    assert pool.allocate(0) == []
    pool.check([2, 0, 1, 3, 4])


def test_a_pool_refuses_what_can_not_be():
    pool = BlockPool(2)
    with pytest.raises(InvariantBroken, match="3 blocks are wanted and 2 are free"):
        pool.allocate(3)
    with pytest.raises(InvariantBroken, match="block 1 is freed twice"):
        pool.free([1])
    assert pool.allocate(1) == [0]
    for used in ([], [0, 0], [1]):
        with pytest.raises(InvariantBroken):
            pool.check(used)
    pool.check([0])
    with pytest.raises(InvariantBroken, match="at least 1"):
        BlockPool(0)
