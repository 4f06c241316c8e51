"""Files and folders of object stores (s3://, gs://), by fsspec, in the cache. Keys and endpoints are the library's own.

What is fetched is known by its address and by what the store says of each file (size, ETag or time): a changed one is
fetched anew, beside what was there before.
"""

import importlib
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from headway.checkpoint.cache_folder import PART_PREFIX, check_space, clear_parts, filled_alone, key_of, sync_file
from headway.checkpoint.progress import Progress
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig

_MODULES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "gcs": ("gcsfs", "gs")}
"""By scheme: what fsspec needs, and our extra that installs it."""
_STAMPS = ("ETag", "etag", "LastModified", "mtime", "updated", "created")
_MAX_FILES = 20_000
_CHUNK_BYTES = 1 << 20


def is_object_store(scheme: str) -> bool:
    """Whether addresses that begin so are fetched here."""
    return scheme in _MODULES


def fetch_object(url: str, config: CheckpointConfig, progress: Progress) -> Path:
    """The file, or the folder with all that is under the address, in the cache. Blocks.

    Raises InvalidConfig without the store's library. DownloadFailed: nothing there, no permission, no connection, more
    than config.max_source_bytes, a full disk.
    """
    store, path = _open(url)
    try:
        found = _list(store, path, url)
        folder = config.cache_dir / "objects" / key_of(f"{url}\n{sorted(found.items())}")
        with filled_alone(folder, progress, url):
            return _fill(store, found, folder, url, config.max_source_bytes, progress)
    except (DownloadFailed, InvalidConfig):
        raise
    except Exception as error:  # each store's library has errors of its own
        raise DownloadFailed(f"{url} could not be fetched: {type(error).__name__}: {error}") from error


def _open(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    module, extra = _MODULES[scheme]
    try:
        core: Any = importlib.import_module("fsspec.core")
        return tuple(core.url_to_fs(url))
    except ImportError as error:
        raise InvalidConfig(
            f"{scheme}:// needs {module}, which is not installed: pip install 'headway[{extra}]'", param="source"
        ) from error


def _list(store: Any, path: str, url: str) -> dict[str, str]:
    """Each file's path in the store, and its stamp. Raises DownloadFailed for none, and for names that lead out."""
    store.invalidate_cache()
    infos: Mapping[str, Any] = store.find(path, detail=True)
    files = {name: info for name, info in infos.items() if info.get("type", "file") == "file"}
    if not files:
        raise DownloadFailed(f"there is nothing at {url}, or it may not be listed with these keys")
    if len(files) > _MAX_FILES:
        raise DownloadFailed(f"{url} has {len(files)} files, at most {_MAX_FILES}: give the folder of one model")
    return {name: f"{info.get('size')} {[str(info.get(key)) for key in _STAMPS]}" for name, info in files.items()}


def _fill(store: Any, found: Mapping[str, str], folder: Path, url: str, max_bytes: int, progress: Progress) -> Path:
    """The folder with the files; of one file alone the file."""
    target = folder / "content"
    if not target.is_dir():
        clear_parts(folder)
        total = sum(int(size) for stamp in found.values() if (size := stamp.partition(" ")[0]).isdecimal())
        if total > max_bytes:
            raise DownloadFailed(f"{url} has {total} bytes, at most {max_bytes} (--max-source-size): raise it if meant")
        check_space(folder, total, url)
        part = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=folder))
        root, done = _common_root(found), 0
        for name in found:
            done = _copy(store, name, part / _inside(name, root, url), done, max_bytes, total, progress)
        part.chmod(0o755)
        part.rename(target)
    return target / PurePosixPath(next(iter(found))).name if len(found) == 1 else target


def _common_root(found: Mapping[str, str]) -> str:
    """The folder that all the files are in."""
    parents = [PurePosixPath(name).parent.parts for name in found]
    shared = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return str(PurePosixPath(*shared))


def _inside(name: str, root: str, url: str) -> PurePosixPath:
    path = PurePosixPath(name).relative_to(root)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise DownloadFailed(f"{url} has a file {name[:200]!r}, whose name leads out of it: it is refused")
    return path


def _copy(store: Any, name: str, path: Path, done: int, max_bytes: int, total: int, progress: Progress) -> int:
    """Returns the bytes of all files so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with store.open(name, "rb") as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            done += len(chunk)
            if done > max_bytes:
                raise DownloadFailed(f"{name} brings it over {max_bytes} bytes (--max-source-size): raise it if meant")
            file.write(chunk)
            progress(f"downloading {path.name}", done, total or None)
    sync_file(path)
    return done
