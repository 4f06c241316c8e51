"""What processes take: written by hand, and of real children."""

import subprocess
import sys
from pathlib import Path

from headway.observe.memory_use import process_tree_bytes

CHILD = """
import subprocess, sys
held = bytearray(b"x") * (64 << 20)
if len(sys.argv) > 1:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
print("there", flush=True)
sys.stdin.readline()
"""


def test_anonymous_and_shared_pages_count_and_those_of_files_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "4294967295"
    folder.mkdir(parents=True)
    lines = ["Rss: 900 kB", "Pss: 800 kB", "Pss_Anon:    300 kB", "Pss_File:    450 kB", "Pss_Shmem:    50 kB"]
    (folder / "smaps_rollup").write_text("\n".join(lines))
    assert process_tree_bytes([4294967295], tmp_path) == 350 * 1024
    (folder / "smaps_rollup").unlink()
    (folder / "status").write_text("VmRSS: 900 kB\nRssAnon:\t     300 kB\nRssFile: 450 kB\nRssShmem:\t     70 kB\n")
    assert process_tree_bytes([4294967295], tmp_path) == 370 * 1024


def test_a_process_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    assert process_tree_bytes([4294967295], tmp_path) == 0


def test_children_count_and_nobody_twice() -> None:
    command = [sys.executable, "-c", CHILD, CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        both = process_tree_bytes([parent.pid])
        assert 128 << 20 <= both < 192 << 20
        assert abs(process_tree_bytes([parent.pid, parent.pid]) - both) < 4 << 20
        parent.kill()
