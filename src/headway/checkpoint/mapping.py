"""A file mapped into memory read-only, whose bytes are handed out as arrays after a check that they are there."""

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headway.errors import CorruptCheckpoint


class MappedFile:
    """The bytes of a file, mapped. Pages are read when they are touched; the file must not shrink meanwhile.

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
        except (OSError, ValueError) as error:
            raise CorruptCheckpoint(f"{path} cannot be read: {error}") from error
        self.modified_ns = status.st_mtime_ns

    def array(self, start: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        """A read-only view of num_bytes bytes from `start`, which the caller has checked against `size`.

        Raises CorruptCheckpoint where the file has shrunk: touching such a page would kill the process.
        """
        if self.data.size() < self.size:
            raise CorruptCheckpoint(f"{self.path} has shrunk since it was opened: load the model again")
        return np.frombuffer(self.data, np.uint8, num_bytes, start)
