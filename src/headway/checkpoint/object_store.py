"""Files and folders of object stores (s3://, gs://), by fsspec, in the cache. Keys and endpoints are the library's own.

What is fetched is known by its address and by what the store says of each file (size, ETag or time): a changed one is
fetched anew, beside what was there before. Files come in pieces of _PIECE_BYTES, each a request that the library
repeats where it fails; what is changed meanwhile is noticed, and not kept.
"""

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from headway.checkpoint.cache_folder import PART_PREFIX, check_space, clear_parts, filled_alone, key_of, sync_file
from headway.checkpoint.progress import Progress
from headway.checkpoint.web_file import shown_address
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, HeadwayError, InvalidConfig

_MODULES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs")}
"""By scheme: what fsspec needs, and our extra that installs it."""
_STAMPS = ("ETag", "etag", "LastModified", "mtime", "updated", "created")
_MAX_FILES = 20_000
_PIECE_BYTES = 16 << 20
_MAX_REASON_LENGTH = 500
_CHANGED = "{} was changed while it was fetched: load it again"
_KEY_HINT = (
    "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3), or GOOGLE_APPLICATION_CREDENTIALS (gs), of this process"
)


def is_object_store(scheme: str) -> bool:
    """Whether addresses that begin so are fetched here."""
    return scheme in _MODULES


def fetch_object(url: str, config: CheckpointConfig, progress: Progress) -> Path:
    """The file, or the folder with all that is under the address, in the cache. Blocks.

    Raises InvalidConfig without the store's library. DownloadFailed: nothing there, no permission, no connection, more
    than config.max_source_bytes, a full disk, what was changed while it came.
    """
    store, path = _open(url)
    found = _find(store, path, url)
    if not found:
        raise DownloadFailed(f"there is nothing at {shown_address(url)}, or it may not be listed with these keys")
    folder = config.cache_dir / "objects" / key_of(f"{url}\n{sorted(found.items())}")
    with filled_alone(folder, progress, shown_address(url)):
        target = folder / "content"
        if not target.is_dir():
            _Filling(store, path, url, found, folder, config.max_source_bytes, progress).run(target)
        return target / PurePosixPath(next(iter(found))).name if len(found) == 1 else target


def list_objects(url: str) -> dict[str, str]:
    """What is under the address: names below it ("" for the address itself), with what the store says of each. Blocks.

    Empty: nothing is there. Raises InvalidConfig without the store's library. DownloadFailed: the store can not be
    asked, or more is there than a model has.
    """
    store, path = _open(url)
    base = path.strip("/")
    found = _find(store, path, url)
    return {name.strip("/").removeprefix(base).strip("/"): stamp for name, stamp in found.items()}


def _open(url: str) -> tuple[Any, str]:
    scheme, _, rest = url.partition("://")
    module, extra = _MODULES[scheme]
    if "@" in rest.partition("/")[0]:
        raise InvalidConfig(f"{shown_address(url)} was given with keys: leave them out{_KEY_HINT}", param="source")
    try:
        core: Any = importlib.import_module("fsspec.core")
        with _told(url):
            return tuple(core.url_to_fs(url))
    except ImportError as error:
        raise InvalidConfig(
            f"{scheme}:// needs {module}, which is not installed: pip install 'headway[{extra}]'", param="source"
        ) from error


def _find(store: Any, path: str, url: str) -> dict[str, str]:
    """Each file's path in the store, and its stamp. Raises DownloadFailed."""
    with _told(url):
        store.invalidate_cache()
        infos: Mapping[str, Any] = store.find(path, detail=True)
    files = {name: info for name, info in infos.items() if info.get("type", "file") == "file" and name[-1:] != "/"}
    if len(files) > _MAX_FILES:
        raise DownloadFailed(
            f"{shown_address(url)} has {len(files)} files, at most {_MAX_FILES}: give the folder of one model"
        )
    return {name: f"{info.get('size')} {[str(info.get(key)) for key in _STAMPS]}" for name, info in files.items()}


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Whatever the store's library raises as DownloadFailed: which are its own, and their words hold no keys."""
    shown = shown_address(url)
    try:
        yield
    except (HeadwayError, ImportError):
        raise
    except FileNotFoundError as error:
        raise DownloadFailed(f"there is nothing at {shown}: {_reason(error)}") from error
    except PermissionError as error:
        raise DownloadFailed(
            f"{shown} may not be read with the keys of this process: {_reason(error)}; give it others, or the right "
            "to list and to read"
        ) from error
    except Exception as error:  # each library has errors of its own
        if type(error).__name__ == "FileExpired":  # s3fs: the object is another one by now
            raise DownloadFailed(_CHANGED.format(shown)) from error
        hint = _KEY_HINT if "Credential" in type(error).__name__ else ""
        raise DownloadFailed(f"{shown} could not be fetched: {_reason(error)}{hint}") from error


def _reason(error: Exception) -> str:
    words = " ".join(str(error).split())[:_MAX_REASON_LENGTH]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class _Filling:
    """One folder of the cache on its way in."""

    def __init__(
        self,
        store: Any,
        path: str,
        url: str,
        found: Mapping[str, str],
        folder: Path,
        max_bytes: int,
        progress: Progress,
    ) -> None:
        self._store = store
        self._path = path
        self._url = url
        self._found = found
        self._folder = folder
        self._max_bytes = max_bytes
        self._progress = progress
        self._sizes = {name: _size_of(stamp) for name, stamp in found.items()}
        self._total = sum(size or 0 for size in self._sizes.values())
        self._done = 0

    def run(self, target: Path) -> None:
        """Raises DownloadFailed, OSError of the disk's."""
        shown = shown_address(self._url)
        clear_parts(self._folder)
        if self._total > self._max_bytes:
            raise DownloadFailed(
                f"{shown} has {self._total} bytes, at most {self._max_bytes} (--max-source-size): raise it if meant"
            )
        check_space(self._folder, self._total, shown)
        part = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=self._folder))
        try:
            root = _common_root(self._found)
            for name in self._found:
                self._copy(name, part / _inside(name, root, shown))
            if _find(self._store, self._path, self._url) != self._found:
                raise DownloadFailed(_CHANGED.format(shown))
        except BaseException:
            clear_parts(self._folder)
            raise
        part.chmod(0o755)
        part.rename(target)

    def _copy(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = self._done
        with path.open("xb") as file:
            for piece in self._pieces(name):
                self._done += len(piece)
                if self._done > self._max_bytes:
                    raise DownloadFailed(
                        f"{name} brings it over {self._max_bytes} bytes (--max-source-size): raise it if meant"
                    )
                file.write(piece)
                self._progress(f"downloading {path.name}", self._done, self._total or None)
        size = self._sizes[name]
        if size is not None and self._done - before != size:
            raise DownloadFailed(
                f"{name} came with {self._done - before} bytes of {size}: it was changed, or the transfer broke off; "
                "load it again"
            )
        sync_file(path)

    def _pieces(self, name: str) -> Iterator[bytes]:
        with _told(self._url):
            # No cache of the library's, which would hold more of the file than a piece.
            source = self._store.open(name, "rb", block_size=_PIECE_BYTES, cache_type="none")
        with source:
            while True:
                with _told(self._url):
                    piece = source.read(_PIECE_BYTES)
                if not piece:
                    return
                yield piece


def _size_of(stamp: str) -> int | None:
    size = stamp.partition(" ")[0]
    return int(size) if size.isdecimal() else None


def _common_root(found: Mapping[str, str]) -> str:
    """The folder that all the files are in."""
    parents = [PurePosixPath(name).parent.parts for name in found]
    shared = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return str(PurePosixPath(*shared))


def _inside(name: str, root: str, shown: str) -> PurePosixPath:
    path = PurePosixPath(name).relative_to(root)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DownloadFailed(f"{shown} has a file {name[:200]!r}, whose name leads out of it: it is refused")
    return path
