"""Object stores, by fsspec's own store in memory in the place of s3: files and folders, fetched anew when changed."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from checkpoint.fake_s3 import REGISTRY, FakeS3
from headway.checkpoint.sources import fetch_source
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    monkeypatch.setitem(REGISTRY._registry, "s3", FakeS3)
    store = FakeS3()
    store.store.clear()
    yield store
    store.store.clear()


def fetch(url: str, tmp_path: Path, **options: int) -> Path:
    return fetch_source(url, CheckpointConfig(cache_dir=tmp_path / "cache", **options))


def test_a_file_and_a_folder(bucket: FakeS3, tmp_path: Path) -> None:
    files = {"m/config.json": b"{}", "m/model.safetensors": b"1" * 3000, "m/sub/tokenizer.json": b"[]"}
    for name, content in files.items():
        bucket.pipe(f"s3://bucket/{name}", content)
    assert fetch("s3://bucket/m/config.json", tmp_path).read_bytes() == b"{}"
    folder = fetch("s3://bucket/m", tmp_path)
    found = {f"m/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == files
    assert fetch("s3://bucket/m", tmp_path) == folder
    assert fetch("s3://bucket/m/", tmp_path).name == "content"


def test_what_has_changed_is_fetched_anew(bucket: FakeS3, tmp_path: Path) -> None:
    bucket.pipe("s3://bucket/m.gguf", b"old")
    before = fetch("s3://bucket/m.gguf", tmp_path)
    bucket.pipe("s3://bucket/m.gguf", b"newer")
    after = fetch("s3://bucket/m.gguf", tmp_path)
    assert (before.read_bytes(), after.read_bytes()) == (b"old", b"newer")


def test_nothing_there_too_much_and_names_that_lead_out(bucket: FakeS3, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="nothing at s3://bucket/none"):
        fetch("s3://bucket/none", tmp_path)
    bucket.pipe("s3://bucket/big/a", b"x" * 600)
    bucket.pipe("s3://bucket/big/b", b"x" * 600)
    with pytest.raises(DownloadFailed, match="1200 bytes, at most 1000"):
        fetch("s3://bucket/big", tmp_path, max_source_bytes=1000)
    bucket.pipe("s3://bucket/bad/a", b"x")
    bucket.pipe("s3://bucket/bad/c\\..\\..\\x", b"x")
    with pytest.raises(DownloadFailed, match="leads out"):
        fetch("s3://bucket/bad", tmp_path)


def test_a_store_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY.known_implementations, "gs", {"class": f"none_{uuid4().hex}.Store"})
    with pytest.raises(InvalidConfig, match=r"pip install 'headway\[gs\]'"):
        fetch("gs://bucket/m", tmp_path)
