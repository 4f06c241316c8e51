"""A disk that takes no more in the middle of a file: it is told with what to do, nothing half is taken for whole, and
the next try works."""

import errno
import os
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoint.fake_s3 import REGISTRY, FakeS3
from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint import archives, object_store, web_file
from headway.checkpoint.sources import fetch_source
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed

CONTENT = bytes(range(256)) * 8192
"""2 MiB."""


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """The system writes no file of this process further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(params=["archive", "web", "store"])
def source(request: pytest.FixtureRequest, stand_in: StandIn, tmp_path: Path) -> str:
    """Where a file of CONTENT comes from."""
    if request.param == "archive":
        with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("m.onnx", CONTENT)
        return str(tmp_path / "m.zip")
    if request.param == "web":
        stand_in.answers["/m.onnx"] = Answer(CONTENT)
        return f"{stand_in.url}/m.onnx"
    request.getfixturevalue("monkeypatch").setitem(REGISTRY._registry, "s3", FakeS3)
    FakeS3().pipe("s3://full-disk/m.onnx", CONTENT)
    return "s3://full-disk/m.onnx"


def fetch(source: str, tmp_path: Path) -> Path:
    return fetch_source(source, CheckpointConfig(cache_dir=tmp_path / "cache"))


def whole_ones(tmp_path: Path) -> list[Path]:
    """What is in the cache under a name that is taken for a whole file."""
    files = (path for path in (tmp_path / "cache").rglob("m.onnx"))
    return [path for path in files if not any(part.startswith("part-") for part in path.parts)]


def test_a_file_that_can_not_be_written_further(source: str, tmp_path: Path) -> None:
    with files_end_at(1 << 20), pytest.raises(DownloadFailed, match=r"File too large.*choose another --cache-dir"):
        fetch(source, tmp_path)
    assert not whole_ones(tmp_path)
    assert fetch(source, tmp_path).read_bytes() == CONTENT


def test_a_full_disk_is_called_so(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems say it only when what was written is to be kept."""

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        for module in (archives, web_file, object_store):
            patched.setattr(module, "sync_file", fail)
        with pytest.raises(DownloadFailed, match=r"the disk is full: .* make room, or choose another --cache-dir"):
            fetch(source, tmp_path)
    assert not whole_ones(tmp_path)
    assert fetch(source, tmp_path).read_bytes() == CONTENT
