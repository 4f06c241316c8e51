"""What processes of a family know of each other: how a child is started, when the parent is gone, how a child ended."""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start_child(command: Sequence[str], **options: Any) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Starts a process that calls begin_child, with `--fd N` appended to its command; our end of the socket pair.

    Raises OSError.

    Args:
        command: the interpreter first.
        options: subprocess.Popen's.
    """
    ours, theirs = socket.socketpair()
    # The child inherits the mask: a Ctrl-C while its interpreter starts is neither a death nor a traceback. Here, what
    # comes meanwhile is delivered when the mask is lifted.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)
    try:
        with theirs:
            fd = theirs.fileno()
            child = subprocess.Popen([*command, "--fd", str(fd)], pass_fds=(fd,), stdin=subprocess.DEVNULL, **options)
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child, ours


def begin_child(fd: int) -> socket.socket:
    """What a child of start_child does first: it ends when its parent says so or ends; its end of the socket pair.

    Ctrl-C goes to the whole group of a terminal, a service manager's SIGTERM to each process of the service; but the
    parent decides when its children end.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINAL_SIGNALS)
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    return connection


def serve_parent(serve: Callable[[socket.socket], None], description: str | None) -> None:
    """The main function of a child that has no other flag than `--fd`: serves its parent until that is gone."""
    import argparse  # the parent, which starts children and is none, need not wait for it

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    connection = begin_child(parser.parse_args().fd)
    try:
        serve(connection)
    except ConnectionError:
        os._exit(0)  # the parent is gone


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent ends, for the moments when the reader can not run.

    A parent that ended before is seen by the reader, as end of file.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # the parent, which starts children and is none, need not wait for it

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
