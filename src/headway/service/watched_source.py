"""What there is in a watched source: a folder's version subfolders, or a file or folder that changes in its place.

A subfolder is a version where its name is a number, or numbers with dots, with or without a v before them (1, 2.1, v3):
as model repositories of Triton and TensorFlow Serving have them. Anything else has one version at a time, which is
named after its files' names, sizes and times.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.errors import InvalidRequest

_VERSION = re.compile(r"v?\d{1,18}(\.\d{1,18}){0,5}")
_MAX_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Found:
    """One version that there is."""

    version: str
    path: Path
    stamp: str
    """Of its files: another one when any of them is another, longer, shorter or newer."""


def check_watchable(source: str) -> None:
    """Raises InvalidRequest for what can not be looked at every few seconds."""
    if "://" in source or not Path(source).expanduser().is_absolute():
        raise InvalidRequest(
            f"watch is for a file or folder by its absolute path, and source is {source[:200]!r}: give one, or leave "
            "watch out",
            param="watch",
        )


def find_versions(source: str) -> list[Found]:
    """All there are, the newest last; empty: nothing is there. Blocks on the disk; never raises."""
    path = Path(source).expanduser()
    try:
        folders = [each for each in path.iterdir() if each.is_dir() and _VERSION.fullmatch(each.name)]
    except OSError:
        folders = []
    if folders:
        return [Found(each.name, each, _stamp_of(each)) for each in sorted(folders, key=lambda each: _order(each.name))]
    if not path.exists():
        return []
    stamp = _stamp_of(path)
    return [Found(stamp, path, stamp)]


def _order(name: str) -> tuple[list[int], str]:
    return [int(part) for part in name.removeprefix("v").split(".")], name


def _stamp_of(path: Path) -> str:
    digest = hashlib.sha256()
    for name, size, modified_ns in sorted(_files_of(path)):
        digest.update(f"{name}\0{size}\0{modified_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def _files_of(path: Path) -> Iterator[tuple[str, int, int]]:
    """A file that vanishes while it is looked at is none."""
    paths = [path] if path.is_file() else (Path(root) / name for root, _, names in os.walk(path) for name in names)
    for number, each in enumerate(paths):
        if number == _MAX_FILES:
            return
        try:
            status = each.stat()
        except OSError:
            continue
        yield str(each.relative_to(path)), status.st_size, status.st_mtime_ns
