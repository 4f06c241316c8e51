"""Files by URL: whole, checked, resumed, and never by a way that others can change."""

import hashlib
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx2
import pytest

from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint.progress import silent
from headway.checkpoint.web_file import fetch_web_file, shown_source
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig

BODY = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(BODY).hexdigest()


def fetch(url: str, cache_dir: Path, sha256: str | None = None, **options: int) -> Path:
    return fetch_web_file(url, CheckpointConfig(cache_dir=cache_dir, **options), silent, sha256)


def names_under(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()} - {".lock"}


def with_etag(etag: str, body: bytes = BODY, **fields: int) -> Callable[[BaseHTTPRequestHandler], Answer]:
    """A server that knows If-Range and If-None-Match."""

    def answer(handler: BaseHTTPRequestHandler) -> Answer:
        if handler.headers.get("If-None-Match") == etag:
            return Answer(status=304)
        if handler.headers.get("Range") and handler.headers.get("If-Range") != etag:
            del handler.headers["Range"]
        return Answer(body, headers={"ETag": etag}, **fields)

    return answer


@pytest.mark.parametrize("sha256", [None, SHA256])
def test_a_file_is_fetched_under_its_name_and_nothing_partial_stays(
    stand_in: StandIn, tmp_path: Path, sha256: str | None
) -> None:
    stand_in.answers["/models/tiny.gguf"] = Answer(BODY)
    path = fetch(f"{stand_in.url}/models/tiny.gguf?key=secret", tmp_path, sha256)
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == BODY
    assert names_under(tmp_path) == {"tiny.gguf", "meta.json"}


def test_with_a_sha256_the_network_is_not_asked_again(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = Answer(BODY)
    first = fetch(f"{stand_in.url}/a", tmp_path, SHA256)
    assert fetch("https://elsewhere.invalid/b", tmp_path, SHA256) == first
    assert stand_in.seen == ["GET /a"]


def test_without_one_the_server_says_whether_it_has_changed(stand_in: StandIn, tmp_path: Path) -> None:
    url = f"{stand_in.url}/a.bin"
    stand_in.answers["/a.bin"] = with_etag('"1"')
    first = fetch(url, tmp_path)
    assert fetch(url, tmp_path) == first
    assert stand_in.seen == ["GET /a.bin"] * 2
    stand_in.answers["/a.bin"] = with_etag('"2"', b"new")
    assert fetch(url, tmp_path).read_bytes() == b"new"


def test_out_of_reach_what_is_there_is_taken(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = Answer(BODY)
    url = f"{stand_in.url}/a"
    first = fetch(url, tmp_path)
    stand_in.answers["/a"] = Answer(BODY, sent_bytes=0, headers={"ETag": '"x"'})
    assert fetch(url, tmp_path) == first
    assert first.read_bytes() == BODY


def test_other_bytes_than_promised_do_not_stay(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = Answer(BODY[:-1] + b"x")
    with pytest.raises(DownloadFailed, match=SHA256):
        fetch(f"{stand_in.url}/a", tmp_path, SHA256)
    assert names_under(tmp_path) == set()


def test_a_broken_download_goes_on_where_it_broke_off(stand_in: StandIn, tmp_path: Path) -> None:
    answers = iter([with_etag('"1"', sent_bytes=500_000), with_etag('"1"', sent_bytes=500_000), with_etag('"1"')])
    ranges: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> Answer:
        ranges.append(handler.headers.get("Range"))
        return next(answers)(handler)

    stand_in.answers["/a"] = answer
    assert fetch(f"{stand_in.url}/a", tmp_path, SHA256).read_bytes() == BODY
    assert ranges[0] is None
    begun = [int(each.removeprefix("bytes=").rstrip("-")) for each in ranges[1:] if each]
    assert len(begun) == 2
    assert 0 < begun[0] < begun[1] <= 1_000_000


def test_a_file_that_changed_meanwhile_is_begun_anew(stand_in: StandIn, tmp_path: Path) -> None:
    answers = iter([with_etag('"1"', b"x" * 800_000, sent_bytes=500_000), with_etag('"2"')])
    stand_in.answers["/a"] = lambda handler: next(answers)(handler)
    assert fetch(f"{stand_in.url}/a", tmp_path).read_bytes() == BODY


def test_another_process_goes_on_with_what_a_killed_one_left(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = with_etag('"1"', sent_bytes=200_000)
    with pytest.raises(DownloadFailed, match="closed connection"):
        fetch(f"{stand_in.url}/a", tmp_path, SHA256)
    kept = next(tmp_path.rglob("part-file")).stat().st_size
    assert kept > 0
    sent: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> Answer:
        sent.append(handler.headers.get("Range"))
        return with_etag('"1"')(handler)

    stand_in.answers["/a"] = answer
    assert fetch(f"{stand_in.url}/a", tmp_path, SHA256).read_bytes() == BODY
    assert sent == [f"bytes={kept}-"]


@pytest.mark.parametrize("has_length", [True, False])
def test_too_large_a_file_is_refused_with_the_limit(stand_in: StandIn, tmp_path: Path, has_length: bool) -> None:
    headers = {} if has_length else {"Connection": "close"}
    stand_in.answers["/a"] = Answer(BODY, headers=headers)
    with pytest.raises(DownloadFailed, match="1000 bytes"):
        fetch(f"{stand_in.url}/a", tmp_path, max_source_bytes=1000)
    assert names_under(tmp_path) == set()


@pytest.mark.parametrize(
    "url",
    ["http://example.com/a", "ftp://example.com/a", "https:///a", "https://[::1/a", "https://h:99999/a", "http://10.0.0.1/a"],
)  # fmt: skip
def test_an_address_that_is_not_taken(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        fetch(url, tmp_path)


def test_a_redirect_may_not_lead_to_http(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = Answer(status=302, headers={"Location": "http://example.com/model"})
    with pytest.raises(InvalidConfig, match="over http"):
        fetch(f"{stand_in.url}/a", tmp_path)


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/a", "https://localhost/a", "http://[::1]:9/a"])
def test_a_redirect_of_another_machine_may_not_lead_to_this_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(302, headers={"Location": where})

    client = partial(httpx2.Client, transport=httpx2.MockTransport(answer))
    monkeypatch.setattr(httpx2, "Client", client)
    with pytest.raises(DownloadFailed, match="which is this machine"):
        fetch("https://models.example/a", tmp_path)
    assert asked == ["https://models.example/a"]


@pytest.mark.parametrize("where", ["https://[::1", "https://h:99999/a", "https://h/" + "a" * 70_000, "https://h\x7f/a"])
def test_a_redirect_that_is_no_address_is_told_as_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(302, headers={"Location": where}))
    monkeypatch.setattr(httpx2, "Client", partial(httpx2.Client, transport=transport))
    with pytest.raises((DownloadFailed, InvalidConfig)):
        fetch("https://models.example/a", tmp_path)


def test_another_part_than_was_asked_for_is_not_put_behind_the_first(stand_in: StandIn, tmp_path: Path) -> None:
    wrong = {"ETag": '"1"', "Content-Range": f"bytes 0-9/{len(BODY)}"}
    answers = iter([with_etag('"1"', sent_bytes=500_000), lambda _: Answer(BODY, headers=wrong), with_etag('"1"')])
    stand_in.answers["/a"] = lambda handler: next(answers)(handler)
    assert fetch(f"{stand_in.url}/a", tmp_path).read_bytes() == BODY


def test_redirects_are_followed_but_not_for_ever(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.answers["/a"] = Answer(status=302, headers={"Location": "/b"})
    stand_in.answers["/b"] = Answer(BODY)
    assert fetch(f"{stand_in.url}/a", tmp_path).read_bytes() == BODY
    stand_in.answers["/c"] = Answer(status=302, headers={"Location": "/c"})
    with pytest.raises(DownloadFailed, match="over 5 times"):
        fetch(f"{stand_in.url}/c", tmp_path)


def test_an_error_of_the_server_is_told_without_keys(stand_in: StandIn, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="404") as error:
        fetch(f"{stand_in.url}/missing?token=secret".replace("//", "//user:secret@"), tmp_path)
    assert "secret" not in error.value.message


def test_two_at_a_time_fetch_once(stand_in: StandIn, tmp_path: Path) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> Answer:
        is_asked.set()
        may_answer.wait(30)
        return Answer(BODY)

    stand_in.answers["/a"] = answer
    found: list[Path] = []
    url = f"{stand_in.url}/a"
    threads = [threading.Thread(target=lambda: found.append(fetch(url, tmp_path, SHA256))) for _ in range(2)]
    threads[0].start()
    assert is_asked.wait(30)
    threads[1].start()
    may_answer.set()
    for thread in threads:
        thread.join(30)
    assert found[0] == found[1]
    assert stand_in.seen == ["GET /a"]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("https://u:p@ss@h/a.zip?token=t#f", "https://h/a.zip"),
        ("https://h/a@b.zip", "https://h/a@b.zip"),
        ("s3://bucket/model", "s3://bucket/model"),
        ("/models/a?b@c", "/models/a?b@c"),
        ("ORG/NAME:FILE.gguf", "ORG/NAME:FILE.gguf"),
    ],
)
def test_a_source_is_shown_without_keys(source: str, shown: str) -> None:
    assert shown_source(source) == shown
