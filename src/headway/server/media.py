"""Fetching what a caller names by URL without lending him this server's place in the network (SSRF).

    1. http and https, to the scheme's own port or one over 1023; no user and password in the URL.
    2. The name is resolved here, once, and the connection goes to an address that was checked: a name that is answered
       otherwise a moment later (DNS rebinding) changes nothing. Only addresses of the public internet are taken: not
       loopback, private, link-local (a cloud's metadata), shared, reserved, multicast, nor IPv4 inside IPv6. Where one
       does not answer the next is tried, all of them checked before the first.
    3. A redirect is followed at most three times, and each goes through 1 and 2.
    4. At most `max_bytes`, counted while they come, and at most `timeout_s` for all of it. No cookies, no proxy of the
       environment, no compression (which could be a bomb).

A domain that the operator lists (--allowed-media-domains) may have any address; where some are listed, others are
refused.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore2

from headway.errors import InvalidRequest, PayloadTooLarge

MAX_REDIRECTS = 3
MAX_ADDRESSES = 4
"""Of one name, that are tried."""
NEXT_AFTER_S = 2.0
"""How long one may take while there is another."""
_PORTS = {"http": 80, "https": 443}
_LOWEST_FREE_PORT = 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = [("accept", "*/*"), ("accept-encoding", "identity"), ("user-agent", "headway"), ("connection", "close")]


class MediaFetcher:
    """One a server; its methods belong to the event loop."""

    def __init__(self, *, allowed_domains: Iterable[str] = (), max_bytes: int, timeout_s: float = 10.0) -> None:
        self._allowed = frozenset(domain.lower() for domain in allowed_domains)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._tls: ssl.SSLContext | None = None

    @property
    def max_bytes(self) -> int:
        """Of one URL."""
        return self._max_bytes

    async def fetch(self, url: str, param: str, max_bytes: int | None = None) -> bytes:
        """The bytes at `url`, fewer than the fetcher's own limit where `max_bytes` is. Raises InvalidRequest that names
        `param`, PayloadTooLarge."""
        limit = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url, param, limit)
        except TimeoutError:
            raise InvalidRequest(
                f"{param}: {_short(url)} was not read within {self._timeout_s:g} s; send the bytes themselves",
                param=param,
            ) from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError, UnicodeError) as error:
            reason = str(_refusal_in(error) or error) or type(error).__name__
            raise InvalidRequest(f"{param}: {_short(url)} can not be read: {reason[:300]}", param=param) from None

    async def _follow(self, url: str, param: str, max_bytes: int) -> bytes:
        """3."""
        if self._tls is None:
            self._tls = ssl.create_default_context()  # reads the system's certificates: some 30 ms
        async with httpcore2.AsyncConnectionPool(self._tls, network_backend=CheckedBackend(self._allowed)) as pool:
            for _ in range(MAX_REDIRECTS + 1):
                host = self._check_url(_split(url, param), url, param)
                async with pool.stream("GET", url, headers=[("host", host), *_HEADERS]) as response:
                    location = dict(response.headers).get(b"location")
                    if response.status not in _REDIRECTS or location is None:
                        return await self._read(response, url, param, max_bytes)
                    url = _join(url, location.decode("latin-1"), param)
        raise InvalidRequest(f"{param} is redirected more than {MAX_REDIRECTS} times: give the last URL", param=param)

    async def _read(self, response: httpcore2.Response, url: str, param: str, max_bytes: int) -> bytes:
        """4."""
        if response.status != 200:
            raise InvalidRequest(f"{param}: {_short(url)} answered {response.status}; it must be 200", param=param)
        data = bytearray()
        async for chunk in response.aiter_stream():
            data += chunk
            if len(data) > max_bytes:
                raise PayloadTooLarge(
                    f"{param}: {_short(url)} has more than {max_bytes} bytes, of {self._max_bytes} that all URLs of a "
                    "request may have",
                    param=param,
                )
        return bytes(data)

    def _check_url(self, url: SplitResult, text: str, param: str) -> str:
        """1, and the operator's list. The Host header's value."""
        host, port = url.hostname, url.port or _PORTS.get(url.scheme, 0)
        if url.scheme not in _PORTS or not host:
            raise InvalidRequest(f"{param} is {_short(text)}; it must be an http or https URL", param=param)
        if "@" in url.netloc:
            raise InvalidRequest(f"{param} has a user or a password in its URL: leave them out", param=param)
        if port != _PORTS[url.scheme] and port < _LOWEST_FREE_PORT:
            raise InvalidRequest(
                f"{param} names port {port}; it must be {_PORTS[url.scheme]} or over 1023", param=param
            )
        if self._allowed and host not in self._allowed:
            raise InvalidRequest(
                f"{param} names {host[:100]}, and media are fetched from {', '.join(sorted(self._allowed))} alone "
                "(--allowed-media-domains): send the bytes themselves",
                param=param,
            )
        return url.netloc


class ForbiddenAddress(OSError):
    """An address that callers do not reach through this server."""


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked, never to a name."""

    def __init__(self, trusted_domains: frozenset[str]) -> None:
        self._trusted = trusted_domains
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        """2. Raises ForbiddenAddress, OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if host.lower() not in self._trusted:
            for address in addresses:
                check_public(address)
        *others, last = addresses[:MAX_ADDRESSES]
        for address in others:
            with suppress(OSError, httpcore2.ConnectError, httpcore2.ConnectTimeout, TimeoutError):
                async with asyncio.timeout(NEXT_AFTER_S):
                    return await self._inner.connect_tcp(address, port, *args, **options)
        return await self._inner.connect_tcp(last, port, *args, **options)

    async def sleep(self, seconds: float) -> None:
        """As the base has it."""
        await asyncio.sleep(seconds)


def check_public(address: str) -> None:
    """Raises ForbiddenAddress for what is not of the public internet: as the address is, and as the IPv4 inside it."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [parsed]
    if isinstance(parsed, ipaddress.IPv6Address):
        found += [each for each in (parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())) if each is not None]
    if any(not each.is_global or each.is_multicast or each.is_reserved for each in found):
        raise ForbiddenAddress("it leads to an address that is not of the public internet")


def _split(url: str, param: str) -> SplitResult:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # checked when it is read
    except ValueError as error:
        raise InvalidRequest(f"{param} is {_short(url)}, which is no URL: {error}", param=param) from None
    return parsed


def _join(url: str, location: str, param: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise InvalidRequest(f"{param} is redirected to {_short(location)}, no URL: {error}", param=param) from None


def _refusal_in(error: BaseException) -> ForbiddenAddress | None:
    """The refusal that a library wrapped."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ForbiddenAddress):
        seen = seen.__cause__ or seen.__context__
    return seen


def _short(url: str) -> str:
    return url if len(url) <= 100 else url[:100] + "..."
