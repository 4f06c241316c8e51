"""Which names a server may be called by.

A page on the web can let its own name lead to 127.0.0.1 (DNS rebinding): the browser then takes a server on this
machine for the page's own, and no rule of origins holds. What such a request can not change is its Host header.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from headway.errors import HostNotAllowed

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""As a Host header has them."""
ANY_HOST = "*"

_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_MAX_SHOWN = 100


def host_name(text: str) -> str:
    """A name or address as Host headers have it: lower case, IPv6 in brackets. Raises ValueError: it is none."""
    name = text.lower()
    name = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no host such as headway.lan, 10.0.0.5 or ::1 (without scheme and port), nor *")
    return name


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name: where it leads is not ours to guess


def callable_names(host: str, asked: tuple[str, ...], *, has_key: bool) -> tuple[str, ...]:
    """What a server that listens on `host` may be called by; none: anything, since nobody asked for less, and a key is
    needed or others are meant to reach it."""
    is_bounded = ANY_HOST not in asked if asked else is_loopback(host) and not has_key
    return tuple(dict.fromkeys((*LOCAL_HOSTS, *_bound_name(host), *asked))) if is_bounded else ()


def _bound_name(host: str) -> tuple[str, ...]:
    """--host as a Host header has it. What is no name is left to listen.bind(), which says so."""
    try:
        return (host_name(host.strip("[]").partition("%")[0]),)
    except ValueError:
        return ()


class AllowedHosts:
    """The names, of config.allowed_hosts; with * among them, or with none, any name may be called."""

    def __init__(self, names: Iterable[str]) -> None:
        self._shown = tuple(names)
        self._names = frozenset(name.encode() for name in self._shown)
        self._is_open = not self._names or ANY_HOST in self._shown

    def refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> HostNotAllowed | None:
        """Why a request with these headers is not answered; its port does not matter.

        A request without a Host header passes: no browser leaves it out.
        """
        if self._is_open:
            return None
        for name, value in headers:
            if name == b"host" and _without_port(value) not in self._names:
                return self._refusal(value.decode("latin-1"))
        return None

    def _refusal(self, value: str) -> HostNotAllowed:
        shown = value if len(value) <= _MAX_SHOWN else value[: _MAX_SHOWN - 3] + "..."
        return HostNotAllowed(
            f"the Host header is {shown!r}, and this server is called by {', '.join(self._shown)}: call it by one of "
            "these, or start it with --allowed-hosts and the name (* for any)",
            param="Host",
        )


def _without_port(value: bytes) -> bytes:
    """`LocalHost.:80` -> `localhost`; what is no port (in brackets there are more colons) stays."""
    value = value.strip().lower()
    name, colon, port = value.rpartition(b":")
    return (name if colon and port.isdigit() else value).removesuffix(b".")
