"""A connection's way out: past its transport where that holds nothing back, in order with it where it does."""

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from headway.server.writes import WriteBatch, make_outlet

PIECES = [bytes((97 + number % 26,)) * (1000 + number) for number in range(800)]
"""More than a socket keeps for a reader who does not read."""


class Watched(asyncio.Protocol):
    def __init__(self) -> None:
        self.num_pauses = 0
        self.goes_on = asyncio.Event()
        self.is_lost = asyncio.Event()

    def pause_writing(self) -> None:
        self.num_pauses += 1

    def resume_writing(self) -> None:
        self.goes_on.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost.set()


async def open_connection() -> tuple[asyncio.Transport, Watched, socket.socket]:
    """A transport, its protocol, and the client's end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    transport, watched = await asyncio.get_running_loop().create_connection(Watched, sock=ours)
    return transport, watched, theirs


async def read_until_end(client: socket.socket) -> bytes:
    read, loop = b"", asyncio.get_running_loop()
    with client:
        while data := await loop.sock_recv(client, 1 << 20):
            read += data
    return read


class Written:
    """A connection's outlet, each of whose writes is a turn of its own."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.batch = WriteBatch(asyncio.get_running_loop())
        self.outlet = make_outlet(transport)

    def write(self, data: bytes | None) -> None:
        self.batch.add(self.outlet, data)
        self.batch.queue.flush()


async def write_all() -> None:
    transport, watched, client = await open_connection()
    written = Written(transport)
    for piece in PIECES[:400]:
        written.write(piece)
    assert watched.num_pauses == 1  # the transport keeps what is left, and says that the reader is behind
    reading = asyncio.ensure_future(read_until_end(client))
    await watched.goes_on.wait()
    for piece in PIECES[400:]:
        written.write(piece)
    written.write(None)
    written.write(b"too late")
    assert await reading == b"".join(PIECES)
    await watched.is_lost.wait()


async def write_to_nobody() -> None:
    transport, watched, client = await open_connection()
    client.close()
    written = Written(transport)
    while not transport.is_closing():
        written.write(b"x")
        await asyncio.sleep(0)
    written.write(b"x")
    written.write(None)
    await watched.is_lost.wait()
    written.outlet.lose()
    written.write(b"x")


async def write_past_the_closing_of_a_connection_whose_descriptor_is_used_again() -> None:
    transport, watched, client = await open_connection()
    written = Written(transport)
    fd = transport.get_extra_info("socket").fileno()
    written.write(b"x")
    written.batch.add(written.outlet, b"secret")
    transport.abort()
    await watched.is_lost.wait()
    here, there = socket.socketpair()
    with here, there, client:
        if here.fileno() != fd:
            os.dup2(here.fileno(), fd)
        there.setblocking(False)
        written.write(b"secret")
        with pytest.raises(BlockingIOError):
            there.recv(1)
        assert client.recv(9) == b"x"
        assert client.recv(9) == b""
        if here.fileno() != fd:
            os.close(fd)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    "act", [write_all, write_to_nobody, write_past_the_closing_of_a_connection_whose_descriptor_is_used_again]
)
def test_what_is_written_arrives_whole_and_in_order_or_the_connection_is_lost(new_loop: Any, act: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(act(), 20))


async def test_an_encrypted_connection_is_written_to_through_its_transport_alone() -> None:
    written: list[bytes] = []
    here, there = socket.socketpair()
    with here, there:
        there.setblocking(False)
        known = {"socket": here, "sslcontext": object()}
        transport: Any = SimpleNamespace(is_closing=lambda: False, write=written.append, get_extra_info=known.get)
        Written(transport).write(b"secret")
        with pytest.raises(BlockingIOError):
            there.recv(1)
    assert written == [b"secret"]
