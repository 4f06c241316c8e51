"""A folder of the cache that one process at a time fills: what is under its final name in it is whole.

Whatever is written goes into a part (a file or folder named part-*), is synced and renamed; what a killed process left
of it is cleared by the next one that fills the folder, unless it may go on from there.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.checkpoint.progress import Progress
from headway.errors import DownloadFailed

PART_PREFIX = "part-"
_CHUNK_BYTES = 1 << 20


@contextmanager
def filled_alone(folder: Path, progress: Progress, what: str) -> Iterator[None]:
    """Makes the folder, and holds its lock; waits while another process has it. Raises DownloadFailed for the disk's
    errors within, with what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another download of {what}", 0, None)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DownloadFailed(_disk_message(error, folder, what)) from error


def clear_parts(folder: Path) -> None:
    """Removes what was begun and not ended."""
    for stale in folder.glob(f"{PART_PREFIX}*"):
        if stale.is_dir():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Returns when the file's bytes are on the disk, so that a rename can not come before them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def key_of(text: str) -> str:
    """A short name for a folder, unlike that of any other text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def sha256_of(path: Path, progress: Progress) -> str:
    """Of a whole file."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raises DownloadFailed with both numbers."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadFailed(
            f"{folder} has {free // 1_000_000} MB free, {what} needs {-(-needed // 1_000_000)} MB: make room, or "
            "choose another --cache-dir"
        )


def _disk_message(error: OSError, folder: Path, what: str) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {folder} could not take {what}; make room, or choose another --cache-dir"
    return f"{what} could not be written into {folder}: {error}; choose another --cache-dir"
