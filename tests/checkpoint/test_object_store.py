"""Object stores, by fsspec's own store in memory in the place of s3: files and folders, fetched anew when changed."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest

from checkpoint.fake_s3 import REGISTRY, FakeS3
from headway.checkpoint.object_store import list_objects
from headway.checkpoint.sources import fetch_source
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig
from headway.service.watched_source import find_versions


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


class TestFaults:
    """Of the store, told as the store's, wherever they come; nothing half is kept."""

    def raising(self, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception) -> None:
        def fail(*_: object, **__: object) -> NoReturn:
            raise error

        monkeypatch.setattr(FakeS3, method, fail)

    @pytest.mark.parametrize(
        ("error", "words"),
        [
            (PermissionError("Access Denied"), "s3://bucket/m.gguf may not be read with the keys of this process"),
            (FileNotFoundError("NoSuchKey"), "there is nothing at s3://bucket/m.gguf"),
            (OSError(5, "Connection was closed"), "s3://bucket/m.gguf could not be fetched: OSError"),
            (type("NoCredentialsError", (Exception,), {})("none"), "set AWS_ACCESS_KEY_ID"),
            (type("FileExpired", (OSError,), {})("another ETag"), "was changed while it was fetched"),
        ],
    )
    @pytest.mark.parametrize("method", ["find", "open"])
    def test_an_error_of_the_store(
        self, bucket: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, words: str
    ) -> None:
        bucket.pipe("s3://bucket/m.gguf", b"x" * 100)
        with monkeypatch.context() as patched:
            self.raising(patched, method, error)
            with pytest.raises(DownloadFailed, match=words) as told:
                fetch("s3://bucket/m.gguf", tmp_path)
            assert "--cache-dir" not in told.value.message
            if method == "find":
                with pytest.raises(DownloadFailed, match=words):
                    list_objects("s3://bucket/m.gguf")
        assert not list((tmp_path / "cache").rglob("*.gguf"))
        assert fetch("s3://bucket/m.gguf", tmp_path).read_bytes() == b"x" * 100

    def test_fewer_bytes_than_were_listed(
        self, bucket: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket.pipe("s3://bucket/m.gguf", b"x" * 100)
        with monkeypatch.context() as patched:
            patched.setattr(FakeS3, "open", lambda *_, **__: io.BytesIO(b"x" * 60))
            with pytest.raises(DownloadFailed, match="came with 60 bytes of 100"):
                fetch("s3://bucket/m.gguf", tmp_path)
        assert not list((tmp_path / "cache").rglob("*.gguf"))

    def test_what_is_changed_meanwhile(self, bucket: FakeS3, tmp_path: Path) -> None:
        for name in ("a", "b"):
            bucket.pipe(f"s3://bucket/m/{name}", b"x")

        def change(what: str, done: int, total: int | None) -> None:
            bucket.pipe("s3://bucket/m/c", b"new")

        with pytest.raises(DownloadFailed, match="was changed while it was fetched"):
            fetch_source("s3://bucket/m", CheckpointConfig(cache_dir=tmp_path / "cache"), change)
        assert sorted(path.name for path in fetch("s3://bucket/m", tmp_path).iterdir()) == ["a", "b", "c"]


def test_an_address_s_keys_are_in_no_message(bucket: FakeS3, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="s3://bucket/none was given with keys: leave them out; set AWS_") as error:
        fetch("s3://KEY:hunter2@bucket/none", tmp_path)
    assert "hunter2" not in error.value.message
    with pytest.raises(DownloadFailed) as none:
        fetch("s3://bucket/none?signature=hunter2", tmp_path)
    assert "hunter2" not in none.value.message


def test_names_below_an_address_and_versions_of_it(bucket: FakeS3) -> None:
    for name in ("1/model.py", "10/a", "10/b/c", "v9/a", "notes.txt", "11"):
        bucket.pipe(f"s3://bucket/m/{name}", b"x")
    assert sorted(list_objects("s3://bucket/m/")) == ["1/model.py", "10/a", "10/b/c", "11", "notes.txt", "v9/a"]
    assert list(list_objects("s3://bucket/m/10/a")) == [""]
    assert list_objects("s3://bucket/none") == {}
    found = find_versions("s3://bucket/m/")
    assert [(each.version, each.source) for each in found] == [(it, f"s3://bucket/m/{it}") for it in ("1", "v9", "10")]
    (plain,) = find_versions("s3://bucket/m/v9")
    assert (plain.version, plain.source) == (plain.stamp, "s3://bucket/m/v9")
    assert find_versions("s3://bucket/none") == []
