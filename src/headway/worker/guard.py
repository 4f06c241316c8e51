"""A launched server's guard: python -m headway.worker.guard --command JSON --fd N.

Runs one command, and ends it and all that it started when the parent ends or says so by an end of file: it leads a
process group of its own, which it takes along. It is not killed with the parent, as workers are: it has to see it end.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading

from headway.observe.processes import die_with_parent

_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM)
TERM_S = 5.0
"""How long the command may take to end by itself."""


def main() -> None:
    """Runs the command; tells its return code (negative: a signal) over the socket; ends the group. Does not return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", type=json.loads, required=True, help="a JSON list")
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    options = parser.parse_args()
    connection = socket.socket(fileno=options.fd)
    connection.set_inheritable(False)
    # We were started with these blocked. The command ends by them; we end by our parent's word alone.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINAL_SIGNALS)
    command = subprocess.Popen(options.command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(connection, command), daemon=True).start()
    code = command.wait()
    with contextlib.suppress(OSError):
        connection.sendall(str(code).encode())
    end_group()


def _end_with_parent(connection: socket.socket, command: "subprocess.Popen[bytes]") -> None:
    select.select([connection], [], [])
    command.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(TERM_S)
        return  # the main thread does the rest
    end_group()


def end_group() -> None:
    """Ends this process and every one of its group: what the command left behind ends with it. Does not return."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
