"""What processes take of the machine's memory, their children included. Reads /proc; may take milliseconds."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

_ROOT = Path("/")
_ROLLUP = re.compile(r"^(?:Pss_Anon|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)
_STATUS = re.compile(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)


def process_tree_bytes(pids: Iterable[int], root: Path = _ROOT) -> int:
    """Anonymous and shared memory of the processes and all below them; 0 for those that are gone.

    Clean pages of files are not counted: the system drops them when it needs to. What several of the processes share is
    counted once, as the kernel's proportional sizes do.
    """
    return memory_bytes(process_tree(pids), root)


def memory_bytes(pids: Iterable[int], root: Path = _ROOT) -> int:
    """The same of these processes alone."""
    return sum(_process_bytes(pid, root) for pid in pids)


def process_tree(pids: Iterable[int]) -> Sequence[int]:
    """The processes and all below them, each once."""
    return list(dict.fromkeys(each for pid in pids for each in (pid, *_descendants(pid))))


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _process_bytes(pid: int, root: Path) -> int:
    """By the kernel's own sums; where it does not make them (not Linux), the resident set."""
    for name, pattern in (("smaps_rollup", _ROLLUP), ("status", _STATUS)):
        try:
            sizes = pattern.findall((root / "proc" / str(pid) / name).read_text())
        except OSError:
            continue
        if sizes:
            return sum(map(int, sizes)) * 1024
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
