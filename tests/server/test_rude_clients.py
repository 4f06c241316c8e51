"""Clients as they are: they reset, stop reading, send half of what they announced, and pipeline."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest
from tests.server.conftest import listening, sse, until

from headway.config import ServerConfig
from headway.server.app import make_app
from headway.server.run import HttpServer
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import ScriptedService

SCRIPT = Script(
    reply=say("Hello!"),
    replies={
        "endless": Reply(tokens=[b"x"], is_endless=True, gates={3: "never"}),
        "flood": Reply(tokens=[b"x" * 20_000], is_endless=True),
    },
)
CONFIG = ServerConfig(port=0, max_body_bytes=100_000, slow_reader_timeout_s=0.2)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[HttpServer, ScriptedService]]:
    """Afterwards the server answers as ever, and nothing is left in the engine."""
    service = ScriptedService(SCRIPT, server=CONFIG)
    async with listening(make_app(service, CONFIG)) as server:
        await service.until_ready()
        yield server, service
        await service.until_idle()
        async with httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/health")).status_code == 200
            answer = await client.post("/basic_generate", json={"prompt": "hello"})
            assert answer.json() == {"generated_text": "Hello!"}
            assert "headway_http_requests_open 1.0" in (await client.get("/metrics")).text


def request_bytes(body: dict[str, Any] | bytes, path: str = "/v1/completions", *, length: int | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps({"model": "scripted"} | body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data) if length is None else length}\r\n\r\n"
    return head.encode() + data


class Connection:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: HttpServer, *, receive_buffer: int | None = None) -> "Connection":
        host, port = server.url.removeprefix("http://").split(":")
        raw = socket.socket()
        if receive_buffer is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        return cls(*await asyncio.open_connection(sock=raw, limit=1024))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_until(self, end: bytes) -> bytes:
        found = b""
        async with asyncio.timeout(10):
            while not found.endswith(end):
                data = await self.reader.read(1)
                if not data:
                    raise EOFError(found)
                found += data
        return found

    def reset(self) -> None:
        """RST, not FIN."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


ENDLESS = {"prompt": "endless", "max_tokens": 1000}
STREAM = request_bytes(ENDLESS | {"stream": True})


async def test_twenty_resets_after_the_first_chunk_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving() as (server, service):
            connections = [await Connection.open(server) for _ in range(20)]
            for connection in connections:
                await connection.send(STREAM)
            for connection in connections:
                await connection.read_until(b"\n\n\r\n")
                connection.reset()
            await service.until_idle()
            aborts = service.predictor().aborts
            assert len(aborts) == len({abort.request_id for abort in aborts}) == 20
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("body", [ENDLESS, ENDLESS | {"n": 3}, ENDLESS | {"prompt": ["endless", "endless 2"]}])
async def test_a_client_that_leaves_before_a_whole_answer_ends_its_requests(body: dict[str, Any]) -> None:
    async with serving() as (server, service):
        connection = await Connection.open(server)
        await connection.send(request_bytes(body))
        await until(lambda: service.stats()["models"]["scripted"]["client_open_requests"])
        await connection.close()
        await service.until_idle()
        assert service.predictor().aborts


async def test_a_client_that_leaves_while_its_model_loads_leaves_the_queue(tmp_path: Any) -> None:
    door = tmp_path / "loaded"
    service = ScriptedService(Script(load_waits_for=str(door)), server=CONFIG)
    async with listening(make_app(service, CONFIG)) as server:
        connection = await Connection.open(server)
        await connection.send(STREAM)
        await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"] == 1)
        await connection.close()
        await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"] == 0)
        door.touch()
        await service.until_ready()
        assert not service.predictor().aborts
        assert service.predictor().num_computed == 0


async def test_half_a_body_starts_nothing_and_holds_nobody_up() -> None:
    async with serving() as (server, service):
        waiting = await Connection.open(server)
        await waiting.send(request_bytes(b'{"prompt"', length=500))
        leaving = await Connection.open(server)
        await leaving.send(request_bytes(b'{"prompt"', length=500))
        await leaving.close()
        async with httpx2.AsyncClient(base_url=server.url) as client:
            assert (await client.post("/basic_generate", json={"prompt": "x"})).status_code == 200
        await waiting.close()
        assert not service.predictor().aborts


async def test_who_does_not_read_is_held_and_then_cut_off() -> None:
    async with serving() as (server, service):
        connection = await Connection.open(server, receive_buffer=4096)
        await connection.send(request_bytes({"prompt": "flood", "max_tokens": 4000, "stream": True}))
        # Nothing is read from here: buffers fill, the sequence is held, and its time runs out.
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: service.predictor().holds)
        await service.until_idle()
        assert service.predictor().num_computed < 4000
        await until(lambda: not server._uvicorn.server_state.connections)
        await connection.close()


@pytest.mark.parametrize("head", [b"", b"POST /tokenize HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr("headway.server.connection.HEAD_TIMEOUT_S", 0.05)
    async with serving() as (server, _):
        connection = await Connection.open(server)
        await connection.send(head)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await connection.reader.read() == b""
        await connection.close()


async def test_a_connection_is_good_for_the_next_request_after_done() -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        for _ in range(3):
            await connection.send(request_bytes({"prompt": "hello", "stream": True}))
            answer = await connection.read_until(b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.count(b"data: [DONE]\n\n") == 1
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await connection.close()


@pytest.mark.parametrize("connection_header", [b"", b"connection: keep-alive\r\n"])
@pytest.mark.parametrize("prompt", ["hello", "flood"])
async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(
    connection_header: bytes, prompt: str
) -> None:
    asked = {"model": "scripted", "prompt": prompt, "stream": True, "max_tokens": 6}
    request = request_bytes(asked).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\n" + connection_header)
    async with serving() as (server, _):
        connection = await Connection.open(server)
        await connection.send(request)
        async with asyncio.timeout(10):
            head, _, body = (await connection.reader.read()).partition(b"\r\n\r\n")
        await connection.close()
        async with httpx2.AsyncClient(base_url=server.url) as client:
            chunked = (await client.post("/v1/completions", json=asked)).text
    lines = head.lower().split(b"\r\n")
    assert lines[0].endswith(b" 200 ok")
    assert b"connection: close" in lines
    assert not [line for line in lines if line.startswith((b"transfer-encoding", b"content-length"))]
    assert text_of(body.decode()) == text_of(chunked)


def text_of(stream: str) -> str:
    """Of completions, from the events of a stream, whose framing is checked."""
    events = sse(stream)
    assert events[-1] == "[DONE]"
    return "".join(choice["text"] for event in events[:-1] for choice in event["choices"])


@pytest.mark.parametrize("line", [b"GET /health HTTP/1.0\r\n\r\n", b"HEAD /health HTTP/1.0\r\nhost: x\r\n\r\n"])
async def test_a_whole_answer_to_http_1_0_has_its_length(line: bytes) -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        await connection.send(line)
        async with asyncio.timeout(10):
            head, _, body = (await connection.reader.read()).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head or line.startswith(b"HEAD")
        await connection.close()


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        one = request_bytes({"prompt": "hello", "stream": True})
        await connection.send(one + request_bytes(b"{", "/tokenize") + one)
        first = await connection.read_until(b"0\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200")
        second = await connection.read_until(b"}}")
        assert second.startswith(b"HTTP/1.1 400")
        assert (await connection.read_until(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await connection.close()


async def test_a_client_that_pipelined_and_left_ends_what_was_running() -> None:
    async with serving() as (server, service):
        connection = await Connection.open(server)
        await connection.send(STREAM + STREAM)
        await connection.read_until(b"\n\n\r\n")
        connection.reset()
        await service.until_idle()
        assert len(service.predictor().aborts) == 1


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_long_body_is_refused_before_it_has_come(is_chunked: bool) -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        if is_chunked:
            await connection.send(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(11):
                await connection.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        else:
            await connection.send(request_bytes(b"", "/tokenize", length=10**12))
        answer = await connection.read_until(b"}}")
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"at most 100000" in answer
        await connection.close()


async def test_who_sends_all_of_a_long_body_first_still_reads_the_413() -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        await connection.send(request_bytes(b" " * 5_000_000, "/tokenize"))
        assert (await connection.read_until(b"}}")).startswith(b"HTTP/1.1 413")
        await connection.send(request_bytes({"prompt": "hello"}))
        assert (await connection.read_until(b"}}}")).startswith(b"HTTP/1.1 200")
        await connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS on a plain port",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x-a: " + b"y" * 70_000,
        b"GET /health HTTP/1.1\r\n" + (b"a: " + b"b" * 100 + b"\r\n") * 700,
        b"GET /" + b"a" * 70_000,
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n",
    ],
    ids=["tls", "path", "length", "smuggling", "chunk", "long header", "many headers", "long path", "tunnel"],
)
async def test_what_is_no_http_is_an_error_in_our_shape_and_the_end_of_the_connection(data: bytes) -> None:
    async with serving() as (server, _):
        connection = await Connection.open(server)
        await connection.send(data)
        async with asyncio.timeout(10):
            answer = await connection.reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
        is_long = len(data) > 65_536
        assert head.startswith(b"HTTP/1.1 431 " if is_long else b"HTTP/1.1 400 ")
        assert b"connection: close" in head.split(b"\r\n")
        assert f"content-length: {len(body)}".encode() in head.split(b"\r\n")
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["code"], "65536" in error["message"]) == (
            ("head_too_large", True) if is_long else ("invalid_http", False)
        )
        await connection.close()


OFFERS = [
    b"upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
]


@pytest.mark.parametrize("offer", OFFERS, ids=["h2c", "websocket"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 150, 10_000])
async def test_a_request_that_offers_another_protocol_is_answered_over_this_one(
    offer: bytes, is_chunked: bool, piece: int
) -> None:
    plain = request_bytes({"prompt": "hello"})
    head, _, body = plain.partition(b"\r\n\r\n")
    if is_chunked:
        head = head[: head.index(b"content-length")] + b"transfer-encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    data = head + b"\r\n" + offer + b"\r\n" + body + plain
    async with serving() as (server, _):
        connection = await Connection.open(server)
        for at in range(0, len(data), piece):
            await connection.send(data[at : at + piece])
            await asyncio.sleep(0)
        for _ in range(2):  # the second one is pipelined behind the first
            answer = await connection.read_until(b"}}}")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b'"text":"Hello!"' in answer
        await connection.close()
