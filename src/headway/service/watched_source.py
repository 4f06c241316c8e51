"""What there is in a watched source: a folder's version subfolders, or a file or folder that changes in its place; on
this machine's disks, or in an object store (s3://, gs://).

A subfolder is a version where its name is a number, or numbers with dots, with or without a v before them (1, 2.1, v3):
as model repositories of Triton and TensorFlow Serving have them. Anything else has one version at a time, which is
named after its files' names, sizes and times (in a store, their ETags).
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.errors import InvalidRequest

_VERSION = re.compile(r"v?\d{1,18}(\.\d{1,18}){0,5}")
_MAX_FILES = 20_000
_STORES = ("s3://", "gs://", "gcs://")


@dataclass(frozen=True, slots=True)
class Found:
    """One version that there is."""

    version: str
    source: str
    stamp: str
    """Of its files: another one when any of them is another, longer, shorter or newer."""


def check_watchable(source: str) -> None:
    """Raises InvalidRequest for what can not be looked at again and again."""
    if not is_remote(source) and ("://" in source or not Path(source).expanduser().is_absolute()):
        raise InvalidRequest(
            f"watch is for a file or folder by its absolute path, or an s3:// or gs:// address, and source is "
            f"{source[:200]!r}: give one, or leave watch out",
            param="watch",
        )


def is_remote(source: str) -> bool:
    """Whether looking at it asks an object store, which costs money and time."""
    return source.startswith(_STORES)


def find_versions(source: str) -> list[Found]:
    """All there are, the newest last; empty: nothing is there. Blocks on the disk, or on the store.

    Of a path it never raises. Of an address DownloadFailed, InvalidConfig: the store can not be asked.
    """
    return _find_in_store(source) if is_remote(source) else _find_on_disk(source)


def _find_on_disk(source: str) -> list[Found]:
    path = Path(source).expanduser()
    try:
        folders = [each for each in path.iterdir() if each.is_dir() and _VERSION.fullmatch(each.name)]
    except OSError:
        folders = []
    if folders:
        found = [Found(each.name, str(each), _stamp_of(_files_of(each))) for each in folders]
        return sorted(found, key=_order)
    if not path.exists():
        return []
    stamp = _stamp_of(_files_of(path))
    return [Found(stamp, str(path), stamp)]


def _find_in_store(source: str) -> list[Found]:
    from headway.checkpoint.object_store import list_objects

    objects = list_objects(source)
    versions: dict[str, list[tuple[str, ...]]] = {}
    for name, stamp in objects.items():
        folder, separator, rest = name.partition("/")
        if separator and _VERSION.fullmatch(folder):
            versions.setdefault(folder, []).append((rest, stamp))
    if versions:
        base = source.rstrip("/")
        found = [Found(version, f"{base}/{version}", _stamp_of(files)) for version, files in versions.items()]
        return sorted(found, key=_order)
    if not objects:
        return []
    stamp = _stamp_of(objects.items())
    return [Found(stamp, source, stamp)]


def _order(found: Found) -> tuple[list[int], str]:
    return [int(part) for part in found.version.removeprefix("v").split(".")], found.version


def _stamp_of(files: Iterable[tuple[object, ...]]) -> str:
    digest = hashlib.sha256()
    for parts in sorted(files):
        digest.update(("\0".join(map(str, parts)) + "\n").encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:12]


def _files_of(path: Path) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times. A file that vanishes while it is looked at is none."""
    paths = [path] if path.is_file() else (Path(root) / name for root, _, names in os.walk(path) for name in names)
    for number, each in enumerate(paths):
        if number == _MAX_FILES:
            return
        try:
            status = each.stat()
        except OSError:
            continue
        yield str(each.relative_to(path)), status.st_size, status.st_mtime_ns
