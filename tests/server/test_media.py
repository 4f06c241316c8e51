"""What a caller names by URL comes from the public internet or from listed domains, within limits, and from nowhere
else."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpcore2
import pytest

from headway.errors import InvalidRequest, PayloadTooLarge
from headway.server import media
from headway.server.basic.predict_input import read_value
from headway.server.media import CheckedBackend, ForbiddenAddress, MediaFetcher, check_public

Answer = Callable[[str], bytes]
"""A path to the bytes of a whole HTTP answer."""


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server on loopback: its port, and the heads of the requests that it got."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        writer.write(answer(head.split(b" ")[1].decode()))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def moved(where: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n".encode()


def trusting(**limits: Any) -> MediaFetcher:
    return MediaFetcher(allowed_domains=["127.0.0.1"], **{"max_bytes": 1000, **limits})


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::7f00:1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_an_address_inside_is_refused(address: str) -> None:
    with pytest.raises(ForbiddenAddress):
        check_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111"])
def test_an_address_of_the_public_internet_is_taken(address: str) -> None:
    check_public(address)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{port}/a", "http://localhost:{port}/a", "http://0x7f000001:{port}/a", "http://[::1]:{port}/a"],
)
async def test_a_loopback_address_is_never_connected_to(url: str) -> None:
    async with serving(lambda _: ok(b"secret")) as (port, heads):
        with pytest.raises(InvalidRequest, match="not of the public internet") as raised:
            await MediaFetcher(max_bytes=1000).fetch(url.format(port=port), "input_data.url")
        assert raised.value.param == "input_data.url"
        assert heads == []


@pytest.fixture
def resolving(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """Names to the addresses that each look-up gives in turn."""
    answers: dict[str, list[str]] = {}

    async def getaddrinfo(self: asyncio.AbstractEventLoop, host: str, port: int, **_: Any) -> list[Any]:
        address = answers[host].pop(0) if host in answers else host
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return answers


async def test_a_name_is_resolved_once_and_its_checked_address_is_connected_to(
    resolving: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving["rebinding.example"] = ["93.184.216.34", "127.0.0.1"]
    connected: list[str] = []

    async def connect(self: Any, host: str, port: int, *args: Any, **options: Any) -> None:
        connected.append(host)

    backend = CheckedBackend(frozenset())
    monkeypatch.setattr(type(backend._inner), "connect_tcp", connect)
    await backend.connect_tcp("rebinding.example", 80)
    assert connected == ["93.184.216.34"]
    with pytest.raises(ForbiddenAddress):
        await backend.connect_tcp("rebinding.example", 80)


class TestAddresses:
    """A name with several: each is tried, each was checked."""

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Addresses and what becomes of a connection to them: an error, or an event that never comes."""
        ends: dict[str, Any] = {}
        self.connected: list[str] = []

        async def connect(_: Any, host: str, port: int, *args: Any, **options: Any) -> str:
            self.connected.append(host)
            end = ends.get(host)
            if isinstance(end, Exception):
                raise end
            if end is not None:
                await end.wait()
            return host

        monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
        monkeypatch.setattr(media, "NEXT_AFTER_S", 0.01)
        return ends

    async def connect(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> Any:
        async def getaddrinfo(_: asyncio.AbstractEventLoop, host: str, port: int, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
        return await CheckedBackend(frozenset()).connect_tcp("many.example", 443)

    async def test_the_next_where_one_refuses_or_is_silent(
        self, tried: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried |= {"2606:4700::1": httpcore2.ConnectError("no route"), "1.1.1.1": asyncio.Event()}
        assert await self.connect(monkeypatch, "2606:4700::1", "1.1.1.1", "1.1.1.1", "8.8.8.8") == "8.8.8.8"
        assert self.connected == ["2606:4700::1", "1.1.1.1", "8.8.8.8"]

    async def test_the_last_one_s_error_is_told_and_no_more_than_four_are_tried(
        self, tried: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        addresses = [f"1.1.1.{number}" for number in range(1, 7)]
        tried |= {each: httpcore2.ConnectError(f"{each} refuses") for each in addresses}
        with pytest.raises(httpcore2.ConnectError, match=r"1\.1\.1\.4 refuses"):
            await self.connect(monkeypatch, *addresses)
        assert self.connected == addresses[:4]

    async def test_one_inside_among_them_and_none_is_connected_to(
        self, tried: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ForbiddenAddress):
            await self.connect(monkeypatch, "1.1.1.1", "8.8.8.8", "8.8.4.4", "9.9.9.9", "10.0.0.1")
        assert self.connected == []

    async def test_all_of_them_have_one_deadline(self, tried: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        tried |= {"1.1.1.1": asyncio.Event(), "8.8.8.8": asyncio.Event()}

        async def getaddrinfo(_: asyncio.AbstractEventLoop, host: str, port: int, **__: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("1.1.1.1", "8.8.8.8")]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
        fetcher = MediaFetcher(max_bytes=10, timeout_s=0.05)
        fetcher._tls = ssl.create_default_context()  # whose making takes as long
        with pytest.raises(InvalidRequest, match=r"not read within 0\.05 s"):
            await fetcher.fetch("http://many.example/", "u")
        assert self.connected == ["1.1.1.1", "8.8.8.8"]


async def test_a_listed_domain_may_be_inside_and_its_bytes_come_whole() -> None:
    async with serving(lambda path: ok(path.encode() * 3)) as (port, heads):
        assert await trusting().fetch(f"http://127.0.0.1:{port}/cat?x=1", "u") == b"/cat?x=1" * 3
    assert f"host: 127.0.0.1:{port}".encode() in heads[0].lower()
    assert b"cookie" not in heads[0].lower()
    assert b"accept-encoding: identity" in heads[0].lower()


async def test_where_domains_are_listed_others_are_refused_by_the_list() -> None:
    fetcher = MediaFetcher(allowed_domains=["images.example"], max_bytes=10)
    with pytest.raises(InvalidRequest, match=r"other\.example.*images\.example alone.*--allowed-media-domains"):
        await fetcher.fetch("https://other.example/a.png", "u")


async def test_a_redirect_is_checked_as_the_first_url() -> None:
    async with serving(lambda path: moved("http://localhost:8080/") if path == "/a" else ok(b"x")) as (port, heads):
        with pytest.raises(InvalidRequest, match="names localhost"):
            await trusting().fetch(f"http://127.0.0.1:{port}/a", "u")
        assert len(heads) == 1


async def test_a_redirect_within_the_list_is_followed_three_times_at_most() -> None:
    def answer(path: str) -> bytes:
        left = int(path[1:])
        return moved(f"/{left - 1}") if left else ok(b"there")

    async with serving(answer) as (port, _):
        assert await trusting().fetch(f"http://127.0.0.1:{port}/3", "u") == b"there"
        with pytest.raises(InvalidRequest, match="redirected more than 3 times"):
            await trusting().fetch(f"http://127.0.0.1:{port}/4", "u")


async def test_what_is_too_long_is_cut_off_on_its_way() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100_000
    async with serving(lambda _: endless) as (port, _):
        with pytest.raises(PayloadTooLarge, match="more than 1000 bytes"):
            await trusting().fetch(f"http://127.0.0.1:{port}/", "u")


async def test_a_server_that_says_nothing_is_left_when_the_time_is_over() -> None:
    async with serving(lambda _: b"") as (port, _):
        pass
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(InvalidRequest, match=r"not read within 0\.05 s"):
        await trusting(timeout_s=0.05).fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/", "u")
    with pytest.raises(InvalidRequest, match="can not be read"):
        await trusting().fetch(f"http://127.0.0.1:{port}/", "u")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "http or https"),
        ("ftp://127.0.0.1/x", "http or https"),
        ("gopher://127.0.0.1:6379/_x", "http or https"),
        ("http:///x", "http or https"),
        ("http://user:pw@127.0.0.1/", "user or a password"),
        ("http://127.0.0.1:22/", "port 22"),
        ("http://127.0.0.1:99999/", "no URL"),
        ("http://[::1/", "no URL"),
    ],
)
async def test_another_kind_of_url_is_refused_before_anything_is_connected(url: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        await trusting().fetch(url, "u")


async def test_another_status_than_200_is_told() -> None:
    async with serving(lambda _: b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as (port, _):
        with pytest.raises(InvalidRequest, match="answered 404"):
            await trusting().fetch(f"http://127.0.0.1:{port}/", "u")


async def test_a_redirect_that_is_no_url_is_refused() -> None:
    async with serving(lambda _: moved("http://[::1")) as (port, _):
        with pytest.raises(InvalidRequest, match="no URL"):
            await trusting().fetch(f"http://127.0.0.1:{port}/a", "input_data.url")


async def test_all_urls_of_a_request_have_one_limit() -> None:
    async with serving(lambda _: ok(b"x" * 600)) as (port, heads):
        url = {"url": f"http://127.0.0.1:{port}/a"}
        assert await read_value({"a": url}, "image-classification", trusting()) == {"a": b"x" * 600}
        with pytest.raises(PayloadTooLarge, match="more than 400 bytes, of 1000 that all URLs"):
            await read_value([url, url, url], "image-classification", trusting())
        assert len(heads) == 3
