"""A file by its URL, in the cache: resumed where it broke off, checked, whole or not there.

https only (http on this machine itself), also behind redirects, none of which leads from elsewhere to this machine.
With a sha256 the file is found by it and the network is not asked again; without one the server is asked whether it has
changed, and if it is out of reach what is there is taken.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from headway.checkpoint.cache_folder import (
    PART_PREFIX,
    check_space,
    clear_parts,
    filled_alone,
    key_of,
    sha256_of,
    sync_file,
)
from headway.checkpoint.progress import Progress
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig

_ATTEMPTS = 3
_MAX_REDIRECTS = 5
_TIMEOUT_S = 30.0
"""Of a connection, and of a silence."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_META = "meta.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is in the cache of a URL, or what a part of it was begun from."""

    name: str
    etag: str = ""


def fetch_web_file(url: str, config: CheckpointConfig, progress: Progress, sha256: str | None = None) -> Path:
    """The file in the cache. Blocks.

    Raises InvalidConfig for an address that is not taken. DownloadFailed: no connection and nothing cached, an error of
    the server's, other bytes than `sha256` says, more than config.max_source_bytes, a full disk.
    """
    check_address(url)
    folder = config.cache_dir / "files" / (sha256 or key_of(url))
    with filled_alone(folder, progress, shown_address(url)):
        kept = _read_meta(folder / _META)
        if kept is not None and sha256 is not None and (folder / kept.name).is_file():
            return folder / kept.name
        return _Download(url, folder, config.max_source_bytes, progress, sha256).run(kept)


def check_address(url: str) -> None:
    """Raises InvalidConfig for what is not fetched: http to other machines, anything without a host."""
    parts = _split(url)
    if not parts.hostname or parts.scheme not in ("https", "http"):
        raise InvalidConfig(
            f"source is {shown_address(url)!r}, no address of a file: give https://HOST/PATH", param="source"
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InvalidConfig(
            f"source is {shown_address(url)!r}: over http anybody on the way can change a model; give https",
            param="source",
        )


class _Download:
    """One file, in up to _ATTEMPTS connections."""

    def __init__(self, url: str, folder: Path, max_bytes: int, progress: Progress, sha256: str | None) -> None:
        self._url = url
        self._folder = folder
        self._max_bytes = max_bytes
        self._progress = progress
        self._sha256 = sha256
        self._part = folder / f"{PART_PREFIX}file"
        self._part_meta = folder / f"{PART_PREFIX}meta.json"

    def run(self, kept: _Kept | None) -> Path:
        """The whole file; where the server says that `kept` has not changed, or is out of reach, that one."""
        import httpx2

        faults: list[str] = []
        with httpx2.Client(timeout=_TIMEOUT_S, trust_env=True) as client:
            for _ in range(_ATTEMPTS):
                try:
                    return self._attempt(client, kept)
                except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                    faults.append(str(error) or type(error).__name__)
        if kept is not None and (self._folder / kept.name).is_file():
            return self._folder / kept.name
        raise DownloadFailed(
            f"{shown_address(self._url)} could not be fetched: {faults[-1]}; check the address and the network"
        )

    def _attempt(self, client: Any, kept: _Kept | None) -> Path:
        begun = _read_meta(self._part_meta)
        offset = self._part.stat().st_size if begun is not None and begun.etag and self._part.is_file() else 0
        headers = {"Accept-Encoding": "identity"}
        if offset and begun is not None:
            headers |= {"Range": f"bytes={offset}-", "If-Range": begun.etag}
        elif kept is not None and kept.etag and (self._folder / kept.name).is_file():
            headers["If-None-Match"] = kept.etag
        with self._open(client, headers) as response:
            if response.status_code == 304 and kept is not None:
                return self._folder / kept.name
            if response.status_code == 206 and offset:
                if not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
                    clear_parts(self._folder)
                    raise self._failure(response)
                return self._take(response, offset)
            if response.status_code == 416:
                clear_parts(self._folder)
                raise self._failure(response)
            if response.status_code != 200:
                raise DownloadFailed(
                    f"{shown_address(self._url)} answers {response.status_code} {response.reason_phrase}"
                )
            clear_parts(self._folder)
            return self._take(response, 0)

    @contextmanager
    def _open(self, client: Any, headers: dict[str, str]) -> Iterator[Any]:
        """The answer, behind redirects, each of whose addresses is checked."""
        url = self._url
        for _ in range(_MAX_REDIRECTS + 1):
            with client.stream("GET", url, headers=headers) as response:
                if not response.has_redirect_location:
                    yield response
                    return
                url = self._next_address(url, response.headers["location"])
        raise DownloadFailed(f"{shown_address(self._url)} leads from address to address, over {_MAX_REDIRECTS} times")

    def _next_address(self, url: str, location: str) -> str:
        """Where a redirect leads. Raises InvalidConfig, DownloadFailed."""
        try:
            following = urljoin(url, location)
        except ValueError as error:
            raise DownloadFailed(
                f"{shown_address(self._url)} leads to {location[:200]!r}, no address: {error}"
            ) from error
        check_address(following)
        if _is_here(following) and not _is_here(self._url):
            raise DownloadFailed(
                f"{shown_address(self._url)} leads to {shown_address(following)}, which is this machine: another "
                "one does not decide what is asked of it; give that address itself if it is meant"
            )
        return following

    def _take(self, response: Any, offset: int) -> Path:
        name, length = _file_name(self._url), response.headers.get("content-length", "")
        total = offset + int(length) if length.isdecimal() else None
        self._check_size(total or 0)
        check_space(self._folder, (total or 0) - offset, name)
        if not offset:
            _write_meta(self._part_meta, _Kept(name, _strong(response.headers.get("etag", ""))))
        done = offset
        with self._part.open("ab" if offset else "wb") as file:
            for chunk in response.iter_raw():
                file.write(chunk)
                done += len(chunk)
                self._check_size(done)
                self._progress(f"downloading {name}", done, total)
        if total is not None and done != total:
            raise self._failure(response)
        return self._finish(name, _read_meta(self._part_meta))

    def _finish(self, name: str, begun: _Kept | None) -> Path:
        """Checks, and renames into place."""
        found = sha256_of(self._part, self._progress) if self._sha256 is not None else None
        if found != self._sha256:
            clear_parts(self._folder)
            raise DownloadFailed(
                f"{shown_address(self._url)} came with sha256 {found}, and must have {self._sha256}: it was changed, "
                "or the sha256 is another file's"
            )
        sync_file(self._part)
        self._part.replace(self._folder / name)
        _write_meta(self._folder / _META, _Kept(name, begun.etag if begun is not None else ""))
        clear_parts(self._folder)
        return self._folder / name

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            clear_parts(self._folder)
            raise DownloadFailed(
                f"{shown_address(self._url)} has over {self._max_bytes} bytes, as many as a source may have "
                "(--max-source-size): raise it if that is meant"
            )

    def _failure(self, response: Any) -> Exception:
        """A connection that ended early: tried again."""
        import httpx2

        return httpx2.RemoteProtocolError("the connection ended before the file did", request=response.request)


def _read_meta(path: Path) -> _Kept | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        kept = _Kept(str(found["name"]), str(found["etag"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kept if _NAME.fullmatch(kept.name) else None


def _write_meta(path: Path, kept: _Kept) -> None:
    part = path.with_name(f"{path.name}.new")
    part.write_text(json.dumps({"name": kept.name, "etag": kept.etag}), encoding="utf-8")
    part.replace(path)


def _strong(etag: str) -> str:
    """An ETag that says that bytes are the same; a weak one says less, and none can be gone on from."""
    return "" if etag.startswith("W/") else etag


def _file_name(url: str) -> str:
    """The last part of the path, since its ending tells a file's kind; "file" where that is no plain name."""
    name = unquote(urlsplit(url).path).rpartition("/")[2]
    return name if _NAME.fullmatch(name) and name != _META and not name.startswith(PART_PREFIX) else "file"


def _is_here(url: str) -> bool:
    """Whether an address names this machine."""
    return _split(url).hostname in _LOOPBACK


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidConfig(f"source is {url[:200]!r}, no address: {error}", param="source") from error
    return parts


def shown_address(url: str) -> str:
    """An address for everybody: without name and password, and without the query, which may hold a key."""
    return re.sub(r"//[^/\s]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])[:500]


def shown_source(source: str) -> str:
    """A model's source for those who only ask it: an address without its keys, anything else as it is."""
    return shown_address(source) if "://" in source else source
