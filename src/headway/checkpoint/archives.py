"""Archives (zip, tar, tar.gz, tar.bz2, tar.xz) unpacked into the cache, by their sha256: hostile ones are refused.

Only folders and files with plain relative names come out: no links, devices, absolute paths or "..", nothing that can
be run, nothing twice. Sizes are counted as bytes are written, not as the archive claims them: all together at most
`max_bytes`, MAX_FILES files and folders, and MAX_RATIO times the archive's own size. A tar is read to its very end,
where the checksums of what compresses it are.
"""

import lzma
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from headway.checkpoint.cache_folder import PART_PREFIX, clear_parts, filled_alone, sha256_of, sync_file
from headway.checkpoint.progress import Progress
from headway.errors import CorruptCheckpoint, UnsupportedModel

MAX_FILES = 20_000
MAX_RATIO = 200
"""Unpacked to packed. Weights hardly shrink, texts to a fifth; deflate makes up to 1,032 of nothing but zeros."""
_FREE_BYTES = 16 * 1024**2
"""So much may come of any archive, whatever its ratio."""
_MAX_NAME_LENGTH = 1024
_DRIVE = re.compile("[A-Za-z]:")
_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
_MAX_DIRECTORY_BYTES = 8 << 20
"""Of a zip's list of members, which is read whole: some hundred bytes for each of MAX_FILES. Each of its 46 bytes or
more becomes ten times as many in memory."""
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError)
_ZIPS = (".zip",)
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_REFUSED = (".tar.zst", ".tzst", ".7z", ".rar", ".tar.lz4")


def is_archive(name: str) -> bool:
    """By its ending. Raises UnsupportedModel for an archive that is not unpacked here."""
    lower = name.lower()
    if lower.endswith(_REFUSED):
        raise UnsupportedModel(
            f"{name} is an archive that Headway does not unpack: make a zip or tar.gz of it, or give the folder"
        )
    return lower.endswith((*_ZIPS, *_TARS))


def unpack(archive: Path, cache_dir: Path, max_bytes: int, progress: Progress, sha256: str | None = None) -> Path:
    """What is in the archive: the folder, or the one file or folder that is all there is in it. Blocks.

    Args:
        sha256: of the archive, if that was checked already.

    Raises:
        CorruptCheckpoint: damaged, or made to do harm; the member and the limit are named.
        DownloadFailed: the disk.
    """
    digest = sha256 or sha256_of(archive, progress)
    folder = cache_dir / "unpacked" / digest
    target = folder / "content"
    with filled_alone(folder, progress, archive.name):
        if not target.is_dir():
            clear_parts(folder)
            part = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=folder))
            try:
                _Unpacking(archive, part, max_bytes, progress).run()
            except BaseException:
                clear_parts(folder)
                raise
            part.chmod(0o755)
            part.rename(target)
    return _content_of(target)


def _content_of(folder: Path) -> Path:
    """Down to where there is more than one thing; a file that is alone is what the archive is about."""
    while True:
        entries = list(folder.iterdir())
        if len(entries) != 1:
            return folder
        if entries[0].is_file():
            return entries[0]
        folder = entries[0]


class _Member(tarfile.TarInfo):
    """One that is not read where its long name, or its other headers, would fill the memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MAX_HEADER_BYTES:
            raise tarfile.TarError(f"a header has {self.size} bytes, at most {_MAX_HEADER_BYTES}")
        if self.size < 0:
            raise tarfile.TarError(f"a member has {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


@dataclass
class _Unpacking:
    """One archive on its way out."""

    archive: Path
    folder: Path
    max_bytes: int
    progress: Progress
    num_bytes: int = 0
    seen: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Raises CorruptCheckpoint."""
        packed = self.archive.stat().st_size
        self.max_bytes = min(self.max_bytes, max(_FREE_BYTES, MAX_RATIO * packed))
        try:
            if self.archive.name.lower().endswith(_ZIPS):
                self._unpack_zip()
            else:
                self._unpack_tar()
        except MemoryError as error:  # what it says of the memory that unpacking it takes
            raise CorruptCheckpoint(
                f"{self.archive} can not be unpacked: it takes more memory than there is"
            ) from error
        except (*_DAMAGES, EOFError, NotImplementedError, RuntimeError) as error:
            raise CorruptCheckpoint(f"{self.archive} can not be unpacked: {error}") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's; of damaged streams it has no number
            raise CorruptCheckpoint(f"{self.archive} can not be unpacked: {error}") from error

    def _unpack_zip(self) -> None:
        self._check_directory()
        with zipfile.ZipFile(self.archive) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    self._refuse(info.filename, "is a link or a device")
                if info.flag_bits & 1:
                    self._refuse(info.filename, "is encrypted")
                path = self._place(info.filename)
                if info.is_dir():
                    self._make_folder(path, info.filename)
                    continue
                with archive.open(info) as source:
                    self._write(source, path, info.filename)

    def _check_directory(self) -> None:
        """Raises CorruptCheckpoint for a list of members that would fill the memory."""
        with self.archive.open("rb") as file:
            end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
        num_bytes = 0 if end is None else int(end[zipfile._ECD_SIZE])  # type: ignore[attr-defined]
        if num_bytes > _MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(
                f"its list of members has {num_bytes} bytes, at most {_MAX_DIRECTORY_BYTES}: it may have {MAX_FILES} "
                "members"
            )

    def _unpack_tar(self) -> None:
        with tarfile.open(self.archive, "r:*", tarinfo=_Member) as archive:
            for member in archive:
                if not (member.isreg() or member.isdir()):
                    self._refuse(member.name, "is a link or a device")
                path = self._place(member.name)
                if member.isdir():
                    self._make_folder(path, member.name)
                    continue
                source = archive.extractfile(member)
                if source is None:
                    self._refuse(member.name, "has no content")
                with source:
                    self._write(source, path, member.name)
            self._read_rest(archive)

    def _read_rest(self, archive: tarfile.TarFile) -> None:
        """What is behind the last member: zeros, of which there may be many too."""
        stream: IO[bytes] = archive.fileobj  # type: ignore[assignment]
        num_bytes = 0
        for chunk in _chunks(stream):
            num_bytes += len(chunk)
            if num_bytes > self.max_bytes:
                raise tarfile.TarError(f"behind its last member are over {self.max_bytes} bytes")

    def _place(self, name: str) -> Path:
        """Where a member goes; inside the folder whatever it is called."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts or name.startswith("/") or "\\" in name or "\0" in name or _DRIVE.match(name):
            self._refuse(name, "leads out of the archive")
        if len(name) > _MAX_NAME_LENGTH or any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
            self._refuse(name, "has too long a name")
        return self.folder.joinpath(*parts)

    def _write(self, source: IO[bytes], path: Path, name: str) -> None:
        key = str(path.relative_to(self.folder))
        if key in self.seen or path.exists():
            self._refuse(name, "is there twice")
        self._make_folder(path.parent, name)
        self._see(key, name)
        with path.open("xb") as file:
            for chunk in _chunks(source):
                self.num_bytes += len(chunk)
                if self.num_bytes > self.max_bytes:
                    self._refuse(
                        name,
                        f"brings what is unpacked over {self.max_bytes} bytes, the least of --max-source-size and "
                        f"{MAX_RATIO} times the archive's size",
                    )
                file.write(chunk)
                self.progress(f"unpacking {self.archive.name}", self.num_bytes, None)
        sync_file(path)

    def _make_folder(self, path: Path, name: str) -> None:
        """With those that it is in, each of which counts."""
        place = self.folder
        for part in path.relative_to(self.folder).parts:
            place /= part
            self._see(str(place.relative_to(self.folder)), name)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            self._refuse(name, "lies in what is a file")

    def _see(self, key: str, name: str) -> None:
        self.seen.add(key)
        if len(self.seen) > MAX_FILES:
            self._refuse(name, f"is one file or folder more than an archive may have ({MAX_FILES})")

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise CorruptCheckpoint(f"{self.archive} is refused: {name[:200]!r} {why}")


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk
