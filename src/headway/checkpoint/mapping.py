"""A file mapped into memory read-only, whose bytes are handed out as arrays after a check that they are there.

A file that another replaces by a rename stays as it was for whoever has it mapped. One that is written or cut in place
does not: that is seen at each array and by check_unchanged(), and a page that has gone meanwhile is a SIGBUS, which
a worker's process explains (native/src/bus_error.h).
"""

import contextlib
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.errors import CorruptCheckpoint


class MappedFile:
    """The bytes of a file, mapped. Pages are read when they are touched; the file must not change meanwhile.

    Raises CorruptCheckpoint where the file cannot be opened or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                self.size = status.st_size
                if self.size == 0:
                    raise CorruptCheckpoint(f"{path} is empty")
                self.data = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
                self._descriptor = os.dup(file.fileno())
        except (OSError, ValueError) as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
        self.modified_ns = status.st_mtime_ns
        self._close_descriptor = weakref.finalize(self, os.close, self._descriptor)
        self._unwatch: weakref.finalize[..., MappedFile] | None = None

    def read(self, start: int, num_bytes: int) -> bytes:
        """A copy of num_bytes bytes from `start`, past the mapping: a file that shrinks meanwhile kills nobody.

        Raises CorruptCheckpoint where they are not there.
        """
        found = b""
        try:
            while len(found) < num_bytes:
                part = os.pread(self._descriptor, num_bytes - len(found), start + len(found))
                if not part:
                    self._changed(f"shrunk from {self.size} to {start + len(found)} bytes")
                found += part
        except OSError as error:
            raise CorruptCheckpoint(f"{self.path} cannot be read: {error}") from error
        return found

    def array(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """A read-only view of num_bytes bytes from `start`, which the caller has checked against `size`.

        Raises CorruptCheckpoint where the file has changed: touching a page that is gone would kill the process.
        """
        self.check_unchanged()
        if self._unwatch is None:
            self._watch()
        return np.frombuffer(self.data, np.uint8, num_bytes, start)

    def will_need(self, start: int, num_bytes: int) -> None:
        """Starts to read these bytes from the disk; does not wait."""
        self._advise("MADV_WILLNEED", start - start % mmap.PAGESIZE, start + num_bytes)

    def release(self, start: int, num_bytes: int) -> None:
        """Takes the pages that hold only these bytes out of the process; touching them reads them again."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = start + num_bytes
        self._advise("MADV_DONTNEED", first, end if end == self.size else end - end % mmap.PAGESIZE)

    def check_unchanged(self) -> None:
        """Raises CorruptCheckpoint where size or time are no longer those of the opening."""
        status = os.fstat(self._descriptor)
        if status.st_size < self.size:
            self._changed(f"shrunk from {self.size} to {status.st_size} bytes")
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified_ns):
            self._changed("been written to")

    def close(self) -> None:
        """Unmaps the file. With arrays of it still about that waits for the last of them."""
        with contextlib.suppress(BufferError):
            if self._unwatch is not None:
                self._unwatch()
            self.data.close()
        self._close_descriptor()

    def _watch(self) -> None:
        """Lets the process say whose page it was, should one be gone. Not before pages are touched: few who open do."""
        from headway import _native

        start = np.frombuffer(self.data, np.uint8).ctypes.data
        place = _native.watch_mapping(start, self.size, str(self.path))
        self._unwatch = weakref.finalize(self, _native.unwatch_mapping, place)

    def _advise(self, name: str, start: int, end: int) -> None:
        advice = getattr(mmap, name, None)  # not on every system
        if advice is not None and end > start:
            self.data.madvise(advice, start, end - start)

    def _changed(self, how: str) -> None:
        raise CorruptCheckpoint(
            f"{self.path} has {how} since it was opened: load the model again, and replace a model's file by renaming "
            "another over it"
        )
