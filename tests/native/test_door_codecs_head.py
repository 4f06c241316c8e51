"""Heads of plain requests against the parser and the middleware of the Python way."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.protocols.http import httptools_impl

import headway.server
from headway._native import DoorCodecs
from headway.server import middleware
from headway.server.headers import find_header
from headway.server.keys import given_key

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost:8000\r\nContent-Length: 4\r\n\r\n"


class Parsed:
    """What uvicorn's parser makes of bytes."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.num_begun = self.num_whole = 0
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.num_begun += 1

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.num_whole += 1


def check_same(data: bytes) -> bool:
    """Whether a head is plain; then it is the parser's, with the body right behind it."""
    told = DoorCodecs.read_head(data)
    if isinstance(told, str):
        return False
    head = data[: told["head_bytes"]]
    body = b"x" * told["content_length"]
    parsed = Parsed(head + body)
    assert (parsed.num_begun, parsed.num_whole, parsed.body) == (1, 1, body)
    assert (parsed.parser.get_method(), parsed.parser.get_http_version()) == (b"POST", "1.1")
    assert parsed.parser.should_keep_alive()
    assert not parsed.parser.should_upgrade()
    assert parsed.url == told["target"]
    scope: Any = {"headers": parsed.headers}
    assert find_header(scope, b"host") == told["host"].decode()
    assert given_key(parsed.headers) == told["api_key"]
    wished = find_header(scope, b"x-request-id") or ""
    assert told["request_id"].decode() == (wished if middleware._REQUEST_ID.fullmatch(wished) else "")
    json_length = find_header(scope, b"inference-header-content-length")
    assert told["json_length"] == (None if json_length is None else int(json_length))
    for name in (b"origin", b"expect", b"content-encoding", b"transfer-encoding", b"upgrade"):
        assert find_header(scope, name) is None
    return True


PLAIN = [
    b"Accept: */*", b"User-Agent: python-httpx/0.28", b"Accept-Encoding: gzip, deflate",
    b"Content-Type: application/json", b"content-type:application/octet-stream", b"Connection: keep-alive",
    b"connection: Keep-Alive", b"Cookie: a=b", b"Authorization: Bearer key", b"AUTHORIZATION: bearer  two words",
    b"Authorization: Basic key", b"X-Api-Key: key", b"Authorization: Bearer", b"X-Request-Id: abc-1:2.3_",
    b"X-Request-Id: not one", b"X-Request-Id: " + b"a" * 65, b"Inference-Header-Content-Length: 2", b"X-Empty:",
    b"X-Forwarded-For: 1.2.3.4", b"TE: trailers", b"Range: bytes=0-",
]  # fmt: skip
OTHER = [
    b"Transfer-Encoding: chunked", b"transfer-encoding: identity", b"Expect: 100-continue", b"Upgrade: h2c",
    b"Origin: http://evil.example", b"Content-Encoding: gzip", b"Connection: close",
    b"Connection: keep-alive, upgrade", b"Proxy-Connection: close", b"Content-Type: multipart/form-data; boundary=x",
    b"Content-Length: 4", b"Content-Length : 4", b" Folded: x", b"\tx", b"Host: b", b"Host:", b"X: a\x00b",
    b"X: \x80", b"X : y", b": y", b"no colon", b"X\xff: y", b"Inference-Header-Content-Length: +2",
    b"Inference-Header-Content-Length: 2 ", b"X: trailing ", b"X: a\rb", b"X: a\nTransfer-Encoding: chunked",
    b"Content-Length: 0x4", b"Transfer-Encoding : chunked", b"X:  two",
    b"X:\ty", b"Anthropic-Version: 1",
]  # fmt: skip


def with_header(*lines: bytes) -> bytes:
    return HEAD[:-2] + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_header_is_read_as_python_reads_it(line: bytes) -> None:
    assert check_same(with_header(line))
    assert check_same(with_header(b"X-Before: 1", line, b"X-After: 2"))


@pytest.mark.parametrize("line", OTHER)
def test_what_means_more_is_left_to_python(line: bytes) -> None:
    assert DoorCodecs.read_head(with_header(line)) == "other"


@pytest.mark.parametrize("name", DoorCodecs.header_names())
def test_what_counts_may_come_once(name: str) -> None:
    assert DoorCodecs.read_head(with_header(f"{name}: 1".encode(), f"{name.title()}: 1".encode())) == "other"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n", b"post / HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"POST / HTTP/2.0\r\n",
        b"POST  / HTTP/1.1\r\n", b"POST /  HTTP/1.1\r\n", b"POST / HTTP/1.1 \r\n", b"POST / HTTP/1.1\n",
        b"\r\nPOST / HTTP/1.1\r\n", b"POST * HTTP/1.1\r\n", b"POST http://a/ HTTP/1.1\r\n", b"POST HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\n",
        b"POST /\x80 HTTP/1.1\r\n", b"POST /\t HTTP/1.1\r\n",
    ],
)  # fmt: skip
def test_another_request_line_is_left_to_python(head: bytes) -> None:
    assert DoorCodecs.read_head(head + HEAD.partition(b"\r\n")[2]) == "other"


@pytest.mark.parametrize("missing", [b"Host: localhost:8000\r\n", b"Content-Length: 4\r\n"])
def test_what_must_be_there_is(missing: bytes) -> None:
    assert DoorCodecs.read_head(HEAD.replace(missing, b"")) == "other"


@pytest.mark.parametrize(
    "size", [b"", b"-1", b"+1", b"1_0", b"04", b"4,4", b"0x4", b"99999999999999999", b"4 4", b"\xb2"]
)
def test_a_length_is_digits(size: bytes) -> None:
    assert DoorCodecs.read_head(HEAD.replace(b"Length: 4", b"Length: " + size)) == "other"


def test_each_beginning_of_a_plain_head_is_partial() -> None:
    head = with_header(*PLAIN[:4], *PLAIN[5:6], *PLAIN[7:9], PLAIN[13])
    assert [DoorCodecs.read_head(head[:size]) for size in range(len(head))] == ["partial"] * len(head)
    assert check_same(head)


def test_a_head_has_a_size() -> None:
    assert DoorCodecs.read_head(b"POST /" + b"a" * 8186) == "other"
    assert DoorCodecs.read_head(with_header(*[b"X: " + b"y" * 90] * 100)) == "other"


HEADS = st.builds(
    lambda lines, cut: b"\r\n".join([HEAD.partition(b"\r\n")[0], *lines]) + b"\r\n\r\n" + cut,
    st.lists(st.sampled_from([*PLAIN, *OTHER, b"Host: a", b"Content-Length: 3", b"Content-Length: 4"]), max_size=5),
    st.binary(max_size=3),
)
SPOILS = st.sampled_from(
    [
        b"\r",
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b":",
        b"\x00",
        b"\x0b",
        b"\x85",
        b",",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n\r\n",
    ]
)


@settings(max_examples=500)
@given(HEADS, st.lists(st.tuples(st.integers(0, 120), SPOILS, st.integers(0, 2)), max_size=3))
def test_a_spoilt_head_is_left_to_python_or_is_the_same_there(
    data: bytes, spoils: list[tuple[int, bytes, int]]
) -> None:
    for place, spoil, gap in spoils:
        data = data[:place] + spoil + data[place + gap :]
    try:
        check_same(data)
    except (HttpParserError, HttpParserUpgrade):
        pytest.fail(f"the parser refuses {data!r}, which the native way takes")


def test_every_header_that_python_looks_at_is_known() -> None:
    """Also to a newer uvicorn, and to a part of the server that is added."""
    looked_at = {name for path in Path(headway.server.__file__).parent.rglob("*.py") for name in headers_of(path)}
    looked_at |= set(re.findall(r'name == b"([a-z-]+)"', inspect.getsource(httptools_impl)))
    assert {"host", "origin", "x-request-id", "inference-header-content-length", "expect"} <= looked_at
    assert looked_at <= set(DoorCodecs.header_names()) | {"connection"}


def headers_of(path: Path) -> set[str]:
    """The names that a module of the server compares, or asks find_header() for."""
    text = path.read_text()
    names = set(re.findall(r'name [!=]= b"([a-z-]+)"', text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "find_header":
            names.add(told_name(path, node.args[1]).decode())
    return names


def told_name(path: Path, argument: ast.expr) -> bytes:
    if isinstance(argument, ast.Constant):
        return argument.value  # type: ignore[return-value]
    assert isinstance(argument, ast.Name), f"{path}: a header's name must be a literal or a constant"
    parts = path.relative_to(Path(headway.server.__file__).parents[1]).with_suffix("").parts
    value: bytes = getattr(importlib.import_module(".".join(("headway", *parts))), argument.id)
    return value
