"""The native door against the Python way: the same requests to two servers, byte for byte; and who went natively."""

import asyncio
import json
import re
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path

import pytest
import pytest_asyncio
from tests.server.conftest import until
from tests.server.native_door_rig import PATH, Served, both, infer_body, post, predict, serving, told

from headway.config import ServerConfig

ROW = [1.5, -2.25, 3e-5, 4e16]


def binary_body(rows: int = 1, **fields: object) -> tuple[bytes, str]:
    data = struct.pack(f"<{4 * rows}f", *range(4 * rows))
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], **fields}).encode()
    return head + data, f"Inference-Header-Content-Length: {len(head)}"


def with_binary_outputs() -> bytes:
    return post(*binary_body(3, parameters={"binary_data_output": True}))


PLAIN = {
    "numbers": post(infer_body(ROW)),
    "several rows": post(infer_body(ROW, [5, 6, 7, 8])),
    "an id": post(infer_body(id="the caller's \u00e9")),
    "one output": post(infer_body(outputs=[{"name": "n"}])),
    "an output as bytes": post(infer_body(outputs=[{"name": "y", "parameters": {"binary_data": True}}, {"name": "n"}])),
    "all outputs as bytes": with_binary_outputs(),
    "input as bytes": post(*binary_body()),
    "a request id": post(infer_body(), "X-Request-Id: a.b:c_d-1"),
    "a request id that is none": post(infer_body(), "X-Request-Id: no spaces"),
    "headers that mean nothing": post(infer_body(), "Accept: */*", "User-Agent: x/1", "Cookie: a=b; c=d"),
    "a type": post(infer_body(), "Content-Type: application/json; charset=utf-8", "Connection: keep-alive"),
    "white space": post(b" \n" + infer_body() + b"\t "),
}
TENSOR = {"data": [[1.5, 2, 3, 4], [5, 6, 7, 8e9]]}
PLAIN |= {
    "/predict: a text": predict('a \u00e9\u4e2d\U0001f600 " \\ \n\x01 /'),
    "/predict: the model says NaN": predict("nan"),
    "/predict: the model says bytes": predict("bytes"),
    "/predict: nothing in it": predict(""),
    "/predict: numbers": predict([0, -1, 1.0, 1e300, 1e-320, -0.0, 2**53 + 1, 2**63, 0.1, 1e16, 123456789.125]),
    "/predict: nested": predict({"a": [{"b": [[], {}, None, True, False]}], "": {"c": "d"}}),
    "/predict: true": predict(True),
    "/predict: no list of tensors": predict({"x": TENSOR, "y": 1}),
    "/predict: a tensor": predict({"x": TENSOR | {"datatype": "FP32", "shape": [2, 4]}}),
    "/predict: white space": post(b' {"input_data" : [ 1 ,\n2 ] , "model_id" : "m" } ', path="/predict"),
}
OTHER = {
    "/predict: the model refuses": predict("refuse"),
    "/predict: bytes": predict({"b64": "YWJj"}),
    "/predict: nothing": predict(None),
    "/predict: parameters": predict([1], parameters={"a": 1}),
    "/predict: a time-out": predict([1], timeout_s=5),
    "/predict: an unknown field": predict([1], input=2),
    "/predict: no model": post(b'{"input_data": 1}', path="/predict"),
    "/predict: no such model": post(b'{"input_data": 1, "model_id": "n"}', path="/predict"),
    "/predict: another shape": predict({"x": {"data": [1, 2, 3]}}),
    "/predict: a number too large": predict({"x": {"data": [[1e39, 2, 3, 4]], "datatype": "FP32"}}),
    "/predict: NaN": post(b'{"input_data": NaN, "model_id": "m"}', path="/predict"),
    "/predict: deep": predict(json.loads("[" * 70 + "]" * 70)),
    "/predict: a key twice": post(b'{"model_id": "m", "input_data": {"a": 1, "a": 2}}', path="/predict"),
    "/predict: a lone surrogate": post(b'{"model_id": "m", "input_data": "\\ud800"}', path="/predict"),
    "/predict: a form": post(b"--x\r\n\r\n--x--", "Content-Type: multipart/form-data; boundary=x", path="/predict"),
    "/predict: a form's fields": post(
        b'--x\r\nContent-Disposition: form-data; name="model_id"\r\n\r\nm\r\n'
        b'--x\r\nContent-Disposition: form-data; name="input_data"\r\n\r\n[1]\r\n--x--\r\n',
        "Content-Type: multipart/form-data; boundary=x",
        path="/predict",
    ),
    "no body": post(b""),
    "no JSON": post(b"{"),
    "a list": post(b"[]"),
    "an unknown field": post(infer_body(inputz=1)),
    "a null": post(infer_body(outputs=None)),
    "another shape": post(infer_body().replace(b"[1, 4]", b"[4, 1]")),
    "another datatype": post(infer_body().replace(b"FP32", b"INT64")),
    "another name": post(infer_body().replace(b'"x"', b'"z"')),
    "no such output": post(infer_body(outputs=[{"name": "z"}])),
    "classes": post(infer_body(outputs=[{"name": "y", "parameters": {"classification": 2}}])),
    "a number that is none": post(infer_body().replace(b"[1, 2", b"[NaN, 2")),
    "a number too large": post(infer_body().replace(b"[1, 2", b"[1e39, 2")),
    "a time-out": post(infer_body(parameters={"timeout": 9_000_000})),
    "a sequence": post(infer_body(parameters={"sequence_id": 5})),
    "no such model": post(infer_body(), path="/v2/models/nobody/infer"),
    "no such version": post(infer_body(), path="/v2/models/m/versions/9/infer"),
    "a query": post(infer_body(), path=PATH + "?a=b"),
    "an escape": post(infer_body(), path="/v2/models/%6d/infer"),
    "compressed": post(infer_body(), "Content-Encoding: gzip"),
    "a page's": post(infer_body(), "Origin: http://localhost:3000"),
    "a length that is none": post(infer_body(), "Inference-Header-Content-Length: x"),
    "a length over all": post(infer_body(), "Inference-Header-Content-Length: 100000"),
    "the model refuses": post(infer_body([666, 1, 2, 3])),
    "the model says NaN": post(infer_body([777, 1, 2, 3])),
    "GET": b"GET /v2/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/1.0": post(infer_body()).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "closes": post(infer_body(), "Connection: close"),
}
BODY = infer_body()
HOSTILE = {
    "two lengths": post(BODY, f"Content-Length: {len(BODY)}"),
    "two lengths that differ": post(BODY, "Content-Length: 1"),
    "a length with a sign": post(BODY).replace(b"Content-Length: ", b"Content-Length: +"),
    "a length of two": post(BODY).replace(b"Content-Length: ", b"Content-Length: 1, "),
    "chunks and a length": post(BODY, "Transfer-Encoding: chunked"),
    "chunks": b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (PATH.encode(), len(BODY), BODY),
    "a space before the colon": post(BODY).replace(b"Content-Length:", b"Content-Length :"),
    "a folded header": post(BODY, "X-A: b\r\n c"),
    "bare line feeds": post(BODY).replace(b"\r\n", b"\n"),
    "a bare carriage return": post(BODY, "X-A: b\rc"),
    "a NUL": post(BODY, "X-A: b\0c"),
    "no host": post(BODY).replace(b"Host: localhost\r\n", b""),
    "two hosts": post(BODY, "Host: other"),
    "the whole address": post(BODY, path="http://localhost" + PATH),
    "dots": post(BODY, path="/v2/models/../models/m/infer"),
    "an expectation": post(BODY, "Expect: 100-continue"),
    "an upgrade": post(BODY, "Upgrade: h2c", "Connection: Upgrade"),
    "another method": post(BODY).replace(b"POST", b"PUT", 1),
    "a method in small letters": post(BODY).replace(b"POST", b"post", 1),
    "no name": post(BODY, ": b"),
    "empty lines before it": b"\r\n\r\n" + post(BODY),
    "rubbish": b"\x16\x03\x01\x00",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Served, Served]]:
    async with both(tmp_path_factory.mktemp("door")) as found:
        for server in found:
            await server.ask(post(BODY), predict(1))  # from here on both paths are known
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def all_answers(server: Served, sent: bytes, *, num: int = 3) -> list[bytes]:
    """What comes back, at most so many answers; the client has no more to say."""
    async with await server.connect() as wire:
        wire.writer.write(sent)
        wire.writer.write_eof()
        answers = [await wire.answer() for _ in range(num)]
        return [told(answer) for answer in answers]


@pytest.mark.parametrize("name", PLAIN)
async def test_what_is_plain_is_answered_natively_as_in_python(servers: tuple[Served, Served], name: str) -> None:
    native, plain = servers
    before = await native.num_native()
    answers = await native.ask(PLAIN[name], PLAIN[name])
    assert await native.num_native() == before + 2
    assert [told(answer) for answer in answers] == [
        told(answer) for answer in await plain.ask(PLAIN[name], PLAIN[name])
    ]
    assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert await plain.num_native() == 0


@pytest.mark.parametrize("name", OTHER)
async def test_all_else_is_answered_in_python(servers: tuple[Served, Served], name: str) -> None:
    native, plain = servers
    before = await native.num_native()
    got, wanted = await native.ask(OTHER[name]), await plain.ask(OTHER[name])
    assert told(got[0]) == told(wanted[0])
    assert await native.num_native() == before
    assert (await native.ask(post(BODY), OTHER[name], post(BODY)))[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_can_be_read_in_two_ways_is_read_by_one_parser(servers: tuple[Served, Served], name: str) -> None:
    """Alone, before a plain one, and behind one, which is answered before anybody looks at what is behind it."""
    native, plain = servers
    for sent in (HOSTILE[name], HOSTILE[name] + post(BODY)):
        got, wanted = [await asked_in_turn(server, sent) for server in (native, plain)]
        assert got == wanted
    (answer,) = await plain.ask(post(BODY))
    wanted = [told(answer), *await asked_in_turn(plain, HOSTILE[name])]
    assert await asked_in_turn(native, post(BODY) + HOSTILE[name]) == wanted


async def asked_in_turn(server: Served, sent: bytes) -> list[bytes]:
    """Answers until the server has no more: the last request asks it to close."""
    closing = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    async with await server.connect() as wire:
        wire.writer.write(sent + closing)
        answers = []
        while not answers or not answers[-1].startswith(b"<end>"):
            answers.append(told(await wire.answer()))
        return answers


async def test_a_request_may_come_in_two_pieces_cut_anywhere(servers: tuple[Served, Served]) -> None:
    native, _ = servers
    sent = post(BODY, "X-Request-Id: cut")
    (whole,) = await native.ask(sent)
    before = await native.num_native()
    async with await native.connect() as wire:
        for place in range(1, len(sent)):
            wire.writer.write(sent[:place])
            await breathe()
            assert told(await wire.ask(sent[place:])) == told(whole)
    assert await native.num_native() == before + len(sent) - 1


async def breathe() -> None:
    """What was written is read: the server's callbacks run on this loop."""
    for _ in range(4):
        await asyncio.sleep(0)


async def test_one_byte_at_a_time(servers: tuple[Served, Served]) -> None:
    native, plain = servers
    sent = post(BODY)
    answers = []
    for server in (native, plain):
        async with await server.connect() as wire:
            for place in range(len(sent)):
                wire.writer.write(sent[place : place + 1])
                await breathe()
            answers.append(told(await wire.answer()))
    assert answers[0] == answers[1]


async def test_pipelined_requests_are_answered_in_their_order(servers: tuple[Served, Served]) -> None:
    native, plain = servers
    asked = [post(infer_body([n, 0, 0, 0], id=str(n))) for n in range(1, 9)]
    asked[3:3] = [OTHER["GET"], OTHER["another shape"], OTHER["the model refuses"]]
    answers: list[list[bytes]] = []
    for server in (native, plain):
        async with await server.connect() as wire:
            wire.writer.write(b"".join(asked))
            answers.append([told(await wire.answer()) for _ in asked])
    assert answers[0] == answers[1]
    assert b'"id":"8"' in answers[0][-1]


async def test_what_is_counted_is_the_same(tmp_path: Path) -> None:
    async with both(tmp_path) as servers:
        counted = []
        for server in servers:
            asked: Sequence[bytes] = [*PLAIN.values(), OTHER["the model refuses"], OTHER["the model says NaN"]]
            await server.ask(*asked, *asked)  # the first of each path in Python
            counted.append(counts_of(await server.metrics()))
            (stats,) = await server.ask(b"GET /v2/models/m/stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
            told_stats = json.loads(stats.partition(b"\r\n\r\n")[2])["model_stats"][0]["inference_stats"]
            counted.append({name: value["count"] for name, value in told_stats.items() if "count" in value})
        assert counted[0] == counted[2]
        assert counted[1] == counted[3]
        assert await servers[0].num_native() >= 2 * len(PLAIN) - 2


def counts_of(metrics: str) -> list[str]:
    """What does not depend on time, but for the requests for metrics themselves."""
    names = ("headway_http_requests_total", "headway_http_requests_open", "headway_infer_requests_total")
    counted = ("headway_infer_request_seconds_count", "headway_http_request_duration_seconds_count")
    lines = [line for line in metrics.splitlines() if line.startswith(names + counted)]
    return sorted(line for line in lines if "/metrics" not in line)


async def test_keys_and_hosts_are_asked_for_natively_too(tmp_path: Path) -> None:
    config = ServerConfig(api_keys=("secret", "other"), allowed_hosts=("localhost", "127.0.0.1"))
    key = "Authorization: Bearer secret"
    async with both(tmp_path, config=config) as servers:
        requests = [
            post(BODY, key),
            post(BODY, key),
            post(BODY, "X-Api-Key: other"),
            post(BODY, key, host="localhost:8000"),
            post(BODY, "authorization: bearer  secret "),
            post(BODY),
            post(BODY, "Authorization: Bearer secre"),
            post(BODY, "Authorization: Bearer secretsecret"),
            post(BODY, "Authorization: Bearer "),
            post(BODY, "Authorization: Basic secret"),
            post(BODY, key, key),
            post(BODY, key, host="evil.example"),
            post(BODY, key, host="localhost.evil"),
            post(BODY, key, host="LocalHost.:80"),
        ]
        got, wanted = [[told(answer) for answer in await server.ask(*requests)] for server in servers]
        assert got == wanted
        assert [answer.split(b" ")[1] for answer in got] == [b"200"] * 5 + [b"401"] * 6 + [b"403"] * 2 + [b"200"]
        assert await servers[0].num_native(key) >= 3


async def test_the_date_is_now_as_http_has_it(servers: tuple[Served, Served]) -> None:
    (answer,) = await servers[0].ask(post(BODY))
    date = re.search(rb"\r\ndate: ([^\r]*)\r\n", answer)
    assert date is not None
    assert abs(parsedate_to_datetime(date[1].decode()).timestamp() - time.time()) < 5
    assert date[1].decode() == formatdate(parsedate_to_datetime(date[1].decode()).timestamp(), usegmt=True)


async def test_without_it_nothing_goes_natively(servers: tuple[Served, Served]) -> None:
    assert servers[1].door is None


@asynccontextmanager
async def known(folder: Path, **settings: object) -> AsyncIterator[Served]:
    """A server whose model has been asked."""
    async with serving(folder, **settings) as server:  # type: ignore[arg-type]
        await server.ask(post(BODY))
        yield server


async def test_one_that_does_not_become_whole_goes_on_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.native_door.WHOLE_WITHIN_S", 0.02)
    async with known(tmp_path) as server:
        sent = post(BODY)
        async with await server.connect() as wire:
            wire.writer.write(sent[:30])
            connections = server.http._uvicorn.server_state.connections
            await until(lambda: any(each._is_in_request for each in connections))
            assert (await wire.ask(sent[30:])).startswith(b"HTTP/1.1 200")
        assert await server.num_native() == 0


async def test_a_slow_reader_gets_all_of_it(tmp_path: Path) -> None:
    rows = [[-index, 0.1, 0.2, 0.3] for index in range(20_000)]
    sent = post(infer_body(*rows))
    async with known(tmp_path) as server:
        async with await server.connect() as wire:
            (whole,) = await server.ask(sent)
            for _ in range(6):
                wire.writer.write(sent)
            answers = [told(await wire.answer()) for _ in range(6)]
        assert set(answers) == {told(whole)}
        assert await server.num_native() >= 2
