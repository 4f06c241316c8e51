"""Outbox: messages on their way from a worker to its parent, in order; whoever sends one never waits for the socket.

A message goes out on the sender's own thread where nothing is before it and the socket takes it: waking another thread
for it, and giving it the interpreter, costs a step more than writing does. What the socket does not take is left to the
writer thread, with all that comes after it.
"""

import logging
import os
import socket
import threading
import time
from queue import SimpleQueue

import headway_wire as wire

logger = logging.getLogger(__name__)

_FLUSH_TIMEOUT_S = 2.0


class Outbox:
    """The writing side of a socket, which is blocking. send() and flush() belong to one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._sender_s = self._writer_s = 0.0
        """Processor time of their threads."""
        self._connection = connection
        self._backlog: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._num_behind = 0
        """Of the backlog, what the writer has not written yet: under the lock."""
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)

    @property
    def cpu_s(self) -> float:
        """Processor time in sending."""
        return self._sender_s + self._writer_s

    def start(self) -> None:
        """Starts the writer."""
        self._writer.start()

    def send(self, *messages: wire.Up) -> None:
        """Puts messages on their way, in one write where the socket takes them; never waits."""
        start = time.thread_time()
        try:
            frame = b"".join([wire.pack_frame(wire.encode(message)) for message in messages])
        except Exception:
            # A message that can not be sent would be a request without an end: the parent must see a death instead.
            logger.exception("a message could not be sent")
            os._exit(1)
        with self._lock:
            rest = frame if self._num_behind else self._write_now(frame)
            if rest:
                self._num_behind += 1
                self._backlog.put(rest)
        self._sender_s += time.thread_time() - start

    def flush(self) -> None:
        """Waits until all is written, but not for a parent that does not read. Nothing is sent after it."""
        self._backlog.put(None)
        self._writer.join(_FLUSH_TIMEOUT_S)

    def _write_now(self, frame: bytes) -> bytes | memoryview:
        """What the socket did not take."""
        try:
            return memoryview(frame)[self._connection.send(frame, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return frame
        except OSError:
            # The parent is gone; the reader sees it too, and ends the process.
            return b""

    def _write(self) -> None:
        try:
            while (rest := self._backlog.get()) is not None:
                self._connection.sendall(rest)
                self._writer_s = time.thread_time()
                with self._lock:
                    self._num_behind -= 1
        except OSError:
            return  # as above
