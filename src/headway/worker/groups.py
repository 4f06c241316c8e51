"""Process groups that end with this process, also where it is killed: a guard in a process of its own sees its end.

A worker leads a process group, so that what a model starts can be ended with it. The kernel ends a worker when its
parent is killed (PR_SET_PDEATHSIG), but not what that one has started: the guard (group_guard.py) does.
"""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

_GUARD = Path(__file__).with_name("group_guard.py")


class GroupGuard:
    """The parent's side. Its process is there while a group is; any thread may call."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """Of the guard."""
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._pipe: int | None = None

    def add(self, group: int) -> None:
        """The group ends when this process does. Where no guard can be started, only its leader will."""
        with self._lock:
            self._groups.add(group)
            if not self._tell(f"+{group}\n"):
                self._start()

    def release(self, group: int) -> None:
        """The group is over: its number may soon be another's. With the last one the guard's process ends."""
        with self._lock:
            if group in self._groups:
                self._groups.remove(group)
                if not self._groups:
                    self._end()
                elif not self._tell(f"-{group}\n"):
                    self._start()

    def _start(self) -> None:
        """A guard that knows all groups: the first, or in place of one that was killed, or reads no more."""
        self._end()
        theirs, ours = os.pipe()
        command = [sys.executable, "-I", "-S", str(_GUARD)]
        silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, theirs, 0), *silent]
        try:
            self.pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setpgroup=0)
        except OSError:
            os.close(ours)
            return
        finally:
            os.close(theirs)
        os.set_blocking(ours, False)
        self._pipe = ours
        self._tell("".join(f"+{group}\n" for group in self._groups))

    def _end(self) -> None:
        """Of the guard, before the end of its input, at which it would end groups; also of one that was stopped."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = None
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _tell(self, lines: str) -> bool:
        """Whether there is a guard that knows it. One that does not read is not waited for."""
        if self._pipe is None:
            return False
        try:
            os.write(self._pipe, lines.encode())
        except (BrokenPipeError, BlockingIOError):
            return False
        return True


GROUPS = GroupGuard()
"""Of this process."""


def end_group(leader: int) -> None:
    """Ends all of a group, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def outlive_leader(leader: int) -> None:
    """Waits for the end of a child that leads a group, and ends what it started: that would keep its memory. Blocks.

    The child is still to be waited for: until then its number is nobody else's.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)
    end_group(leader)
    GROUPS.release(leader)


def reap_group(leader: int) -> None:
    """Takes in what was left of a group that has ended, its leader waited for already.

    Where this process is the first one of a container, or a subreaper, orphans become its children, and would stay as
    zombies; elsewhere there are none.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-leader, 0)
