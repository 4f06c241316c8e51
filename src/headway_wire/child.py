"""What a process that serves its parent does first: it ends when its parent says so, or with it; never before.

The same as Headway's own children do, for interpreters where Headway is not installed.
"""

import ctypes
import importlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from typing import Sequence

_PR_SET_PDEATHSIG = 1
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def begin_child(fd: int) -> socket.socket:
    """Our end of the socket pair that was inherited as `fd`.

    Ctrl-C goes to the whole group of a terminal, a service manager's SIGTERM to each process of the service; but the
    parent decides when its children end.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINAL_SIGNALS)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    # A predictor may fork: such a child must not speak for us, nor hold the connection open when we are gone.
    os.register_at_fork(after_in_child=connection.close)
    return connection


def import_ahead(modules: Sequence[str]) -> None:
    """Imports what the model will probably need. What can not be imported is told by whoever needs it."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # whatever a broken installation raises
            logging.getLogger("headway_wire").debug("%s can not be imported ahead", module, exc_info=True)


def end_with_parent(connection: socket.socket) -> None:
    """Starts a thread that ends this process at the parent's end of file, whatever the others are doing.

    It only polls: what the parent sends is left to whoever reads.
    """
    threading.Thread(target=_watch, args=(connection.fileno(),), name="watch parent", daemon=True).start()


def _watch(fd: int) -> None:
    # Without POLLRDHUP a hang-up is told all the same, once both directions are closed.
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", 0))
    while not poll.poll():
        continue
    os._exit(0)
