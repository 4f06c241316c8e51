"""Side threads of an engine, whose work others do not wait for."""

import contextlib
import os
import sys
import threading

_NICENESS = 5
"""Beside threads that never rest they still get a quarter of a core: what is bounded is done in time."""


def give_way() -> None:
    """Has the calling thread give way to those that compute, and the processes that it starts. Linux' threads have
    priorities of their own; elsewhere nothing changes."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
