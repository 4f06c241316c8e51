"""What this process may use of the machine: memory, cores, instructions. Reads /proc and the cgroup, changes nothing.

Every function takes the root of the file system, so that a test can lay out its own.
"""

import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""cgroup v1 writes nearly 2**63 for no limit."""


def total_memory_bytes(root: Path = _ROOT) -> int:
    """The machine's memory, or the least memory limit of the control groups that this process is in."""
    limits = (limit for limit, _ in _cgroup_memory(root))
    return min([_meminfo(root)["MemTotal"], *limits])


def available_memory_bytes(root: Path = _ROOT) -> int:
    """What can still be taken without swapping: MemAvailable, or what a control group's limit leaves if that is less.

    File pages that a group counts and could drop (inactive_file) are taken for free.
    """
    left = (max(0, limit - used) for limit, used in _cgroup_memory(root))
    return min([_meminfo(root)["MemAvailable"], *left])


def usable_cores(root: Path = _ROOT) -> int:
    """Cores that this process may compute on: its affinity, or the cgroup's quota in whole cores if that is less."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _cgroup_quotas(root))]))


def isa_flags(root: Path = _ROOT) -> frozenset[str]:
    """The instruction set's flags by the kernel's names (avx2, avx512_bf16, amx_bf16, asimd, bf16 ...)."""
    text = _read(root / "proc/cpuinfo") or ""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset({platform.machine()})


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name; for a kernel without MemAvailable (before 3.14) free memory stands for it."""
    text = _read(root / "proc/meminfo") or ""
    sizes = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "MemTotal" not in sizes:
        sizes["MemTotal"] = _total_from_sysconf()
    sizes.setdefault("MemAvailable", sizes.get("MemFree", sizes["MemTotal"]))
    return sizes


def _total_from_sysconf() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The process's group and all that hold it: a limit of any of them binds. cgroup v1 and v2."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, name = line.split(":", 2)
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        # In a container the path may be the host's: the mount's own top is then the process's group.
        group = top / name.lstrip("/")
        yield from (group, *(parent for parent in group.parents if parent.is_relative_to(top)))


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each group that has a limit."""
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and limit < _UNLIMITED:
                droppable = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat") or "", re.M)
                yield limit, max(0, (used or 0) - (int(droppable.group(1)) if droppable else 0))


def _cgroup_quotas(root: Path) -> Iterator[float]:
    """Cores of each group that has a quota."""
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = (_read(folder / "cpu.max") or "").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            yield int(quota) / int(period)
        old_quota, old_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if old_quota is not None and old_quota > 0 and old_period:
            yield old_quota / old_period
