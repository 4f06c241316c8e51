"""The listening socket: bound before anything else starts, so that a wrong address is told in one line."""

import errno
import socket

from headway.errors import InvalidConfig

BACKLOG = 2048
_TCP_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
"""A client that vanished without a word, and waits for a whole answer, is noticed after about a minute."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises InvalidConfig in one line."""
    if not 0 <= port <= 65535:
        raise InvalidConfig(f"port is {port}; it must be at least 0 and at most 65535", param="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise InvalidConfig(f"host {host} is no address of this machine: try 127.0.0.1", param="host") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _set_keep_alive(bound)
        bound.bind(address)
        # Now, and not when the event loop comes to it: a second server on this port learns it here.
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise InvalidConfig(_bind_message(host, port, error), param="port") from None
    return bound


def _set_keep_alive(bound: socket.socket) -> None:
    """For all connections: they inherit it. What the system has not is left as it is."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_KEEP_ALIVE.items():
        if hasattr(socket, name):
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _bind_message(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another one, or 0 for any that is free"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user: choose one over 1023"
    return f"can not listen on {host} port {port}: {error.strerror}"
