"""SocketInbox: what the parent sends, read by the thread that computes: a request to an idle model wakes no other one.

Until the model is ready that thread loads, and another reads, so that a Shutdown ends the process at once. After that
another only waits for the parent's end of file, which ends the process whatever it is doing.
"""

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import headway_wire as wire
from headway.worker.loop import Inbox
from headway_wire.child import end_with_parent
from headway_wire.connection import Connection, NotAMessage, ParentGone

logger = logging.getLogger(__name__)

EXIT_BAD_PARENT = 3
"""The parent sent what is no message."""


class SocketInbox:
    """The reading side of a blocking socket. take() and take_over() belong to one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self.cpu_s = 0.0
        """Processor time of the taker's thread in reading."""
        self._socket = connection
        self._connection = Connection(connection)
        self._early = Inbox()
        """Before take_over()."""
        self._come: deque[wire.Down] = deque()
        """After it: read, and not taken yet."""
        self._is_ours = False
        self._stop, self._stopped = socket.socketpair()
        self._reader = threading.Thread(target=self._read_early, name="reader", daemon=True)

    def start(self) -> None:
        """Starts the reader."""
        self._reader.start()

    def take_over(self) -> None:
        """The caller's thread reads from now on; what was read before comes first."""
        self._stop.close()
        self._reader.join()
        self._stopped.close()
        self._come.extend(self._early.take(is_blocking=False))
        self._is_ours = True
        end_with_parent(self._socket)

    def take(self, *, is_blocking: bool, timeout_s: float | None = None) -> Iterable[wire.Down]:
        """All that is there; if it must, it waits for the first, at most so long."""
        if self._is_ours:
            return self._take(timeout_s if is_blocking else 0.0)
        return self._early.take(is_blocking=is_blocking, timeout_s=timeout_s)

    def _take(self, wait_s: float | None) -> Iterator[wire.Down]:
        # Between two steps there is mostly nothing, which is not worth two looks at the clock.
        if not self._come and (wait_s != 0.0 or self._connection.has_come()):
            start = time.thread_time()
            self._come.extend(self._receive(wait_s))
            self.cpu_s += time.thread_time() - start
        while self._come:
            yield self._come.popleft()

    def _read_early(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stopped, select.POLLIN)
        while all(fd != self._stopped.fileno() for fd, _ in poll.poll()):
            for message in self._receive(0.0):
                if isinstance(message, wire.Shutdown):
                    os._exit(0)
                self._early.put(message)

    def _receive(self, wait_s: float | None) -> Sequence[wire.Down]:
        """Ends the process with its parent, and where what came is no message."""
        try:
            return self._connection.receive(wait_s)
        except NotAMessage as error:
            logger.error("the parent sent what is no message: %s", error)
            os._exit(EXIT_BAD_PARENT)
        except ParentGone:
            os._exit(0)
