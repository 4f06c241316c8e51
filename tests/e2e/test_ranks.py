"""`headway serve --tensor-parallel-size`: answers as worked by hand, a dead rank told and mended, none left over."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
from serving import Server, start_server, stop_server, wait_until

from headway.testing.tiny_model import greedy_by_hand, write_tiny_model

FLAGS = ("--executor", "torch", "--tensor-parallel-size", "3", "--max-num-seqs", "4", "--kv-cache-memory", "8MiB")
LONG = {"model": "tiny", "prompt": "ab", "max_tokens": 480, "temperature": 0, "ignore_eos": True, "stream": True}
SHORT = {"model": "tiny", "prompt": "xy", "max_tokens": 8, "temperature": 0}
SAID = "".join(map(chr, (token_id for token_id in greedy_by_hand(list(b"xy"), 8) if token_id < 256)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = start_server(tmp_path, *FLAGS, model=str(write_tiny_model(tmp_path / "tiny")))
    yield server
    assert stop_server(server) == 0, server.describe()


def ranks_of(server: Server) -> list[psutil.Process]:
    return [child for child in server.worker().children() if "headway.engine.rank" in child.cmdline()]


def check_answers(server: Server) -> None:
    answer = server.post("/v1/completions", SHORT)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == SAID


def wait_gone(processes: list[psutil.Process], server: Server) -> None:
    wait_until(lambda: not any(process.is_running() for process in processes), 20, server.describe)


def test_a_killed_rank_ends_its_streams_with_its_name_and_the_model_serves_again(server: Server) -> None:
    check_answers(server)
    worker, ranks = server.worker(), ranks_of(server)
    assert len(ranks) == 2
    with httpx2.stream("POST", server.url + "/v1/completions", json=LONG, timeout=60) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        next(lines)
        ranks[0].send_signal(signal.SIGKILL)
        rest = list(lines)
    assert json.loads(rest[-2])["error"]["code"] == "worker_died"
    wait_gone([worker, *ranks], server)
    assert "rank 1 of 3 was ended by SIGKILL" in server.log.read_text()
    check_answers(server)

    # Nothing outlives the worker.
    worker, ranks = server.worker(), ranks_of(server)
    worker.kill()
    wait_gone(ranks, server)
