"""Machines laid out as files: what a process may use is the least of what each of them says."""

import os

import pytest

from headway.observe import machine

MEMINFO = "MemTotal:       2000 kB\nMemFree:         500 kB\nMemAvailable:   1000 kB\n"
KIB = 1024


def lay_out(root, files):
    for path, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "5:memory:/job\n3:cpu,cpuacct:/job\n"}
MEMORY = [
    ({}, 2000, 1000),
    ({**V2, "sys/fs/cgroup/a/b/memory.max": "max\n"}, 2000, 1000),
    (
        {
            **V2,
            "sys/fs/cgroup/a/memory.max": f"{800 * KIB}\n",  # a group above binds as well
            "sys/fs/cgroup/a/memory.current": f"{500 * KIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {100 * KIB}\n",
        },
        800,
        400,
    ),
    (
        {
            **V1,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{600 * KIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{700 * KIB}\n",
        },
        600,
        0,
    ),
    # In a container the group's path is the host's and only the mount's top is there.
    (
        {
            **V1,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{900 * KIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
        },
        900,
        900,
    ),
    ({**V1, "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n"}, 2000, 1000),
    ({"proc/meminfo": "MemTotal: 2000 kB\nMemFree: 500 kB\n"}, 2000, 500),
    ({**V2, "sys/fs/cgroup/a/b/memory.max": "what?\n"}, 2000, 1000),
]


@pytest.mark.parametrize(("files", "total", "available"), MEMORY)
def test_memory_is_the_least_of_the_machine_and_its_groups(tmp_path, files, total, available):
    root = lay_out(tmp_path, files)
    assert machine.total_memory_bytes(root) == total * KIB
    assert machine.available_memory_bytes(root) == available * KIB


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 2),
        ({**V2, "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/a/cpu.max": "6400000 100000\n"}, 8),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_cores_are_the_least_of_affinity_and_quota(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.usable_cores(lay_out(tmp_path, files)) == cores


def test_instruction_flags_are_the_kernels_words(tmp_path):
    x86 = lay_out(tmp_path / "x86", {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n"})
    arm = lay_out(tmp_path / "arm", {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd bf16\n"})
    assert machine.isa_flags(x86) == {"fpu", "avx2", "avx512_bf16"}
    assert machine.isa_flags(arm) == {"fp", "asimd", "bf16"}
    assert machine.isa_flags(tmp_path / "none")
