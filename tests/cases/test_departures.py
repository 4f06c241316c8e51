"""Clients that leave: what ran for them ends, and nothing else does."""

import json
import socket

import httpx2
import pytest

from cases.asking import COMPLETIONS, answer, text_of
from e2e.serving import Server, wait_until


@pytest.mark.case("disc-n-02")
def test_every_choice_of_a_client_that_leaves_is_aborted(server: Server) -> None:
    aborts = server.metric("headway_request_aborts_total")
    body = {"model": "tiny", "prompt": "ab", "n": 3, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", server.url + COMPLETIONS, json=body, timeout=60) as response:
        next(response.iter_lines())
    wait_until(lambda: server.metric("headway_request_aborts_total") > aborts, 20, server.describe)


@pytest.mark.case("disc-crash-04")
def test_twenty_resets_leave_nothing(server: Server) -> None:
    """Twenty streams whose sockets are reset after the first bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "tiny", "prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True})
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    sockets = []
    for _ in range(20):
        sock = socket.create_connection((host, int(port)), timeout=60)
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        sockets.append(sock)
    for sock in sockets[:8]:
        assert sock.recv(1)
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        sock.close()
    assert server.get("/health").status_code == 200
    assert text_of(answer(server, COMPLETIONS)["choices"][0]) == "cdef"
    assert "Traceback" not in server.describe()


@pytest.mark.case("disc-nonstream-05")
def test_who_waits_for_a_whole_answer_and_leaves_is_noticed(server: Server) -> None:
    aborts = server.metric("headway_request_aborts_total")
    body = {"model": "tiny", "prompt": "ab", "n": 8, "max_tokens": 500, "ignore_eos": True}
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(server.url + COMPLETIONS, json=body, timeout=0.05)
    wait_until(lambda: server.metric("headway_request_aborts_total") > aborts, 20, server.describe)


@pytest.mark.case("cancel-late-06")
def test_what_has_ended_is_not_aborted(server: Server) -> None:
    aborts = server.metric("headway_request_aborts_total")
    with httpx2.Client(base_url=server.url) as client:
        body = {"model": "tiny", "prompt": "ab", "max_tokens": 3, "stream": True}
        with client.stream("POST", COMPLETIONS, json=body) as response:
            response.read()
        client.post(COMPLETIONS, json={**body, "n": 0})
    server.check_idle()
    assert server.metric("headway_request_aborts_total") == aborts
