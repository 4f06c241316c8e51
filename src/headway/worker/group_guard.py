"""The guard of process groups (worker/groups): reads which begin (+) and which are over (-), a line each, and at the
end of file, when its parent is gone, ends those that are left.

Run by its path without site-packages, and with little imported: so it is there at once and takes some megabytes.
"""

import os
import signal
import sys

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    """The guard: until the end of file of its standard input."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
