"""The child process: python -m headway.worker.serve --fd N.

The main thread reads between steps (worker/socket_inbox), computes (worker/loop) and writes; a second one writes what
the socket does not take at once (worker/outbox), so that a step never waits for the socket; a third one waits for the
parent's end of file. That ends the process at once, whatever it is doing: a worker never outlives its parent.
"""

import argparse
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence

import headway_wire as wire
from headway.observe.processes import begin_child
from headway.worker.channel import EXIT_LOST_PAGE
from headway.worker.loop import WorkerLoop
from headway.worker.outbox import Outbox
from headway.worker.socket_inbox import SocketInbox
from headway_wire.child import import_ahead

logger = logging.getLogger(__name__)


class SocketWorker:
    """The inbox and the outbox around a loop."""

    def __init__(self, connection: socket.socket) -> None:
        self.inbox = SocketInbox(connection)
        self._outbox = Outbox(connection)

    def start(self) -> None:
        """Starts the threads of both."""
        self.inbox.start()
        self._outbox.start()

    def send(self, message: wire.Up) -> None:
        """Puts a message on its way; never waits."""
        if isinstance(message, wire.Ready):
            self.inbox.take_over()
            # What is loaded stays: the collector need not look at it again.
            gc.freeze()
            gc.enable()
        self.send_all((message,))

    def send_all(self, messages: Sequence[wire.Up]) -> None:
        """Puts messages that come while it serves on their way, as one write; never waits."""
        self._outbox.send(*map(self._complete, messages))

    def flush(self) -> None:
        """Waits until all is written, but not for a parent that does not read."""
        self._outbox.flush()

    def _complete(self, message: wire.Up) -> wire.Up:
        """Stats have what only the two boxes know."""
        if not isinstance(message, wire.Stats):
            return message
        return wire.Stats(values={**message.values, "wire_cpu_seconds_total": self.inbox.cpu_s + self._outbox.cpu_s})


def explain_lost_pages() -> None:
    """Has a SIGBUS in a mapped file end this process with words and EXIT_LOST_PAGE (native/src/bus_error.h)."""
    # An installation without its kernels is told by the predictor, as a failed load.
    with contextlib.suppress(ImportError):
        from headway import _native

        _native.explain_bus_errors(EXIT_LOST_PAGE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves the socket `--fd` until it ends; the exit code."""
    gc.disable()  # until the model is ready: imports and weights make no garbage
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a connected socket, inherited")
    parser.add_argument("--import", action="append", default=[], dest="modules", help="a module to import at once")
    options = parser.parse_args(arguments)
    connection = begin_child(options.fd)
    explain_lost_pages()
    worker = SocketWorker(connection)
    worker.start()
    if options.modules:
        import_ahead(options.modules)
        worker.send(wire.Waiting())
    exit_code = WorkerLoop(worker.inbox, worker.send, serves_many=True, send_all=worker.send_all).run()
    worker.flush()
    return exit_code


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not sys.exit: a daemon thread that holds a lock, or a library's atexit, must not keep the process.
    os._exit(code)
