"""GPUs that are not there (observe/gpus.Gpus)."""

from collections.abc import Iterable, Mapping, Sequence


class FakeGpus:
    """As many as sizes are given."""

    def __init__(self, *total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self.used: dict[int, dict[int, int]] = {}
        """Bytes by GPU, by process id; may be changed."""

    def total_bytes(self) -> Sequence[int]:
        """The sizes."""
        return self._total_bytes

    def process_bytes(self, pids: Iterable[int]) -> Mapping[int, int]:
        """Of `used`."""
        wanted = frozenset(pids)
        sums = {gpu: sum(used[pid] for pid in used if pid in wanted) for gpu, used in self.used.items()}
        return {gpu: num_bytes for gpu, num_bytes in sums.items() if num_bytes}
