"""What residents are measured to take."""

import subprocess
import sys

import psutil

from headway.service.events import CPU
from headway.service.memory_watch import MemoryWatch
from headway.testing.fake_clock import FakeClock
from headway.testing.fake_gpus import FakeGpus

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("there", flush=True)
sys.stdin.read()
"""


def test_what_a_model_has_started_counts_on_gpus_too() -> None:
    gpus = FakeGpus(100)
    watch = MemoryWatch(gpus, FakeClock(), lambda model, measured: None)
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (child,) = psutil.Process(parent.pid).children()
        gpus.used[0] = {parent.pid: 3, child.pid: 4, 1: 50}
        amounts = watch._amounts_of([parent.pid])
        parent.kill()
    assert amounts["cuda:0"] == 7
    assert amounts[CPU] > 0
