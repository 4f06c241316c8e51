"""A real engine under load, looked at from outside: its times, its profile, `headway top`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Server, start_server, stop_server

from headway.testing.tiny_model import write_tiny_model

BODY = {"prompt": "abc", "max_tokens": 40, "ignore_eos": True, "n": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    flags = ("--threads", "1", "--kv-cache-memory", "4MiB", "--served-model-name", "tiny")
    server = start_server(tmp_path_factory.mktemp("serve"), *flags, model=str(folder))
    yield server
    assert stop_server(server) == 0, server.describe()


def headway(*arguments: str) -> str:
    command = [sys.executable, "-c", "from headway.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def ask(server: Server) -> None:
    answer = server.post("/v1/completions", {"model": "tiny", **BODY})
    assert answer.status_code == 200, answer.text


def test_each_choice_has_its_times_and_they_add_up(tiny: Server) -> None:
    ask(tiny)
    tiny.check_idle()
    families = ("queue", "prefill", "decode", "inference")
    assert [tiny.metric(f"headway_request_{name}_time_seconds_count") for name in families] == [2, 2, 2, 2]
    queue, prefill, decode, inference = (tiny.metric(f"headway_request_{name}_time_seconds_sum") for name in families)
    assert prefill + decode == pytest.approx(inference)
    assert 2 * tiny.metric("headway_e2e_request_latency_seconds_sum") > queue + inference > 0
    assert tiny.metric("headway_iteration_tokens_total_sum") == tiny.metric("headway_computed_tokens_total")
    assert tiny.metric("headway_request_generation_tokens_sum") == 80
    assert tiny.metric("headway_request_params_n_sum") == 2


def test_a_profile_is_recorded_while_it_serves_and_top_tells_of_it(tiny: Server, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with ThreadPoolExecutor(2) as pool:
        recording = pool.submit(headway, "profile", "--url", tiny.url, "--steps", "30", "--output", str(path))
        while not recording.done():
            ask(tiny)
        shown = recording.result()
    assert shown.startswith("30 steps, ")
    assert "AddLinear" in shown
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in events if event["cat"] == "step"]
    assert len(steps) == 30
    for step in steps:
        ops = [event for event in events if event["cat"] == "op" and event["args"]["step"] == step["args"]["step"]]
        assert sum(op["dur"] for op in ops) == pytest.approx(step["dur"], abs=0.1)  # microseconds: without a gap
        assert all(step["ts"] <= op["ts"] + 0.01 for op in ops)
    line = headway("top", "--url", tiny.url, "--once")
    assert line.startswith("model=tiny state=ready ")
    assert "requests_ended=0 " not in line
