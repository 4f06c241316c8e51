"""What a measurement was taken on, in one line, and how many cores it may use."""

import os
import platform
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_name() -> str:
    """Processor, instruction sets, cores, memory and Python."""
    facts = dict(line.split(":", 1) for line in _read("/proc/cpuinfo").split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = set(facts.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    isas = " ".join(flag for flag in wanted if flag in flags) or "none of AVX2, AVX-512"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = facts.get("model name", platform.processor() or platform.machine())
    family = f"family {facts.get('cpu family', '?')} model {facts.get('model', '?')}"
    return f"{name} ({family}; {isas}), {usable_cores()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def describe_machine() -> str:
    """The machine, and whether something else was running."""
    load = os.getloadavg()[0]
    busy = f"\nWARNING: the load average is {load:.1f}: the machine is not idle" if load > 0.5 else ""
    return f"Machine: {machine_name()}{busy}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
