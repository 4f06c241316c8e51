"""Connection: the child's side of the socket, for one thread that reads and writes it itself: no hop to another."""

import select
import socket
from typing import List, Optional, Sequence

import msgspec

from headway_wire.framing import FrameReader, FrameTooLarge, pack_frame
from headway_wire.messages import Down, Up, decode_down, encode

_READ_BYTES = 1 << 20


class ParentGone(Exception):
    """The parent has ended the connection."""


class NotAMessage(Exception):
    """The parent sent what can not be read."""


class Connection:
    """Messages over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = FrameReader()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def has_come(self) -> bool:
        """Whether receive() would find something now: bytes, or the end."""
        return bool(self._poll.poll(0))

    def receive(self, wait_s: Optional[float] = None) -> List[Down]:
        """All messages that are there; waits for the first at most so long, None: for ever.

        If none is whole, one that has begun is waited for, since its rest is on its way; with a wait_s of 0 it is not.

        Raises ParentGone, NotAMessage.
        """
        messages: List[Down] = []
        if wait_s is not None and not self._poll.poll(max(0.0, wait_s) * 1000.0):
            return messages
        flags = 0
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, flags)
            except BlockingIOError:
                data = None
            except OSError as error:
                raise ParentGone(str(error)) from error
            if data is not None:
                if not data:
                    raise ParentGone("end of file")
                messages += self._decode(data)
                if len(data) == _READ_BYTES:
                    flags = socket.MSG_DONTWAIT  # there may be more
                    continue
            if messages or wait_s == 0 or not self._frames.num_pending_bytes:
                return messages
            flags = 0

    def _decode(self, data: bytes) -> List[Down]:
        try:
            return [decode_down(payload) for payload in self._frames.feed(data)]
        except (FrameTooLarge, msgspec.DecodeError) as error:
            raise NotAMessage(str(error)) from error

    def send(self, messages: Sequence[Up]) -> None:
        """Writes them in one go; blocks until the socket has taken them.

        Raises ParentGone; before anything is written, FrameTooLarge and what msgspec raises for what it can not encode.
        """
        data = b"".join([pack_frame(encode(message)) for message in messages])
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ParentGone(str(error)) from error
