"""BlockPool: which blocks of the KV memory are free. Numbers only; the KV cache is its one caller."""

from collections.abc import Iterable

from headway.errors import InvariantBroken


class BlockPool:
    """Blocks 0 to num_blocks - 1: first in that order, later the one that was freed last (the warmest) first."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise InvariantBroken(f"a pool of {num_blocks} blocks: it needs at least 1")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._is_free = bytearray(b"\x01") * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self, num: int) -> list[int]:
        """`num` blocks. Raises InvariantBroken if there are fewer: the caller makes room first."""
        free = self._free
        if num > len(free):
            raise InvariantBroken(f"{num} blocks are wanted and {len(free)} are free")
        if num == 0:
            return []
        blocks = free[: -num - 1 : -1]
        del free[-num:]
        for block in blocks:
            self._is_free[block] = 0
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Gives blocks back, the last of them to be reused first. Raises InvariantBroken for one that is free."""
        for block in blocks:
            if self._is_free[block]:
                raise InvariantBroken(f"block {block} is freed twice")
            self._is_free[block] = 1
            self._free.append(block)

    def check(self, used: Iterable[int]) -> None:
        """Raises InvariantBroken unless `used` and the free blocks are each block once."""
        everyone = [*self._free, *used]
        if sorted(everyone) != list(range(self.num_blocks)):
            raise InvariantBroken(f"{self.num_blocks} blocks, but free and used ones are {sorted(everyone)}")
        if any(not self._is_free[block] for block in self._free) or sum(self._is_free) != len(self._free):
            raise InvariantBroken("the free list and the free flags disagree")
