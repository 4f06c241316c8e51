"""Frames on a byte stream: four bytes of length, little-endian, then that many bytes of msgpack."""

import struct
from collections.abc import Iterator

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A longer frame is a fault of the sender: it is refused before anything is allocated for it."""

_LENGTH = struct.Struct("<I")


class FrameTooLarge(ValueError):
    """A frame's length field is over the limit; the stream cannot be trusted after it."""


def pack_frame(payload: bytes) -> bytes:
    """`payload` with its length before it. Raises FrameTooLarge."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into payloads, however the stream was split on its way."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds `data`; yields each payload that is whole now. Raises FrameTooLarge."""
        buffer, is_behind = self._buffer, bool(self._buffer)
        if is_behind:
            buffer += data
        # What nothing is left before, which is nearly all, is cut where it lies.
        view = memoryview(buffer if is_behind else data)
        start, size = 0, len(view)
        try:
            while size - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                if length > MAX_FRAME_BYTES:
                    raise FrameTooLarge(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
                end = start + _LENGTH.size + length
                if end > size:
                    break
                payload = view[start + _LENGTH.size : end].tobytes()
                start = end
                yield payload
        finally:
            view.release()
            if is_behind:
                del buffer[:start]
            else:
                buffer += data[start:]

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet: not 0 at end of file means that it was cut."""
        return len(self._buffer)
