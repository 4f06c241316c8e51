"""What goes wrong around the server: clients that vanish, a worker that is killed, a signal in the middle."""

import json
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import httpx2
from serving import Server, wait_until

LONG = {"model": "demo", "prompt": "Count:", "max_tokens": 2000, "temperature": 0, "ignore_eos": True}


def events(response: httpx2.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def is_running(server: Server) -> bool:
    return server.metric("headway_num_requests_running") > 0


def test_a_stream_whose_client_leaves_is_not_computed_any_further(server: Server) -> None:
    aborts = server.metric("headway_request_aborts_total")
    with httpx2.stream("POST", server.url + "/v1/completions", json={**LONG, "stream": True}, timeout=60) as response:
        next(events(response))
    server.check_idle()
    assert server.metric("headway_request_aborts_total") == aborts + 1


def test_a_client_that_resets_its_connection_while_it_waits_for_the_whole_is_noticed(server: Server) -> None:
    body = json.dumps(LONG).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: is_running(server), 20, server.describe)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.check_idle()


def test_a_killed_worker_fails_its_open_requests_at_once_and_the_next_one_works(
    own_server: Callable[..., Server],
) -> None:
    server = own_server()
    before = server.worker().pid
    with httpx2.stream("POST", server.url + "/v1/completions", json={**LONG, "stream": True}, timeout=60) as response:
        stream = events(response)
        next(stream)
        server.worker().kill()
        killed_at = time.monotonic()
        rest = list(stream)
        assert time.monotonic() - killed_at < 1.0
    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["error"]["code"] == "worker_died"
    assert server.get("/ready").status_code == 503
    assert server.get("/livez").status_code == 200
    answer = server.post("/v1/completions", {**LONG, "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert server.worker().pid != before
    server.wait_ready()
    server.check_idle()


def test_sigterm_lets_a_stream_finish_and_refuses_what_is_new(own_server: Callable[..., Server]) -> None:
    server = own_server("--drain-timeout", "60")
    body = {**LONG, "max_tokens": 300, "stream": True}
    statuses: list[int] = []
    with httpx2.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as response:
        stream = events(response)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/ready").status_code == 503, 10, server.describe)
        statuses.append(server.post("/v1/completions", {**LONG, "max_tokens": 4}).status_code)
        rest = list(stream)
    assert statuses == [503]
    assert rest[-1] == "[DONE]"
    reasons = [json.loads(event)["choices"][0]["finish_reason"] for event in rest[:-1]]
    assert reasons[-1] == "length"
    assert server.process.wait(timeout=60) == 0, server.describe()


def test_no_process_is_left_when_the_server_itself_is_killed(own_server: Callable[..., Server]) -> None:
    server = own_server()
    worker = server.worker()
    server.process.kill()
    server.process.wait()
    worker.wait(timeout=20)


def test_twenty_clients_that_reset_after_the_first_chunk_leave_nothing_behind(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({**LONG, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"

    def be_rude() -> None:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            connection.recv(4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    threads = [threading.Thread(target=be_rude) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    server.check_idle()
    assert server.post("/v1/completions", {**LONG, "max_tokens": 4}).status_code == 200
    assert "Traceback" not in server.describe()
