"""What processes of a family know of each other: when the parent is gone, and how a child ended."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent ends, for the moments when the reader can not run.

    A parent that ended before is seen by the reader, as end of file.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def describe_exit(code: int | None) -> str:
    """Words for an exit code: "was ended by SIGKILL", "ended with exit code 1"."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
