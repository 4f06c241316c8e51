"""vLLM's server launched here: started, asked, seen when it dies, and never left over. tests/peers asks a real one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.sampling import SamplingParams
from headway.errors import InvalidConfig, ModelError, UpstreamFailed
from headway.service.frameworks import is_elsewhere, vllm_mode
from headway.service.local import LocalService
from service.remote.conftest import WAIT_S, until

FAKE = Path(__file__).with_name("fake_vllm.py")
REQUEST = GenerateRequest("r", "far", ChatPrompt([{"role": "user", "content": "hi"}]), SamplingParams(top_k=3))


@pytest.fixture
async def launch(tmp_path: Path) -> AsyncIterator[Any]:
    """Makes services whose model "far" is launched by a Python that has a vLLM which is none."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    python.chmod(0o755)
    services: list[LocalService] = []

    def make(source: str, **options: Any) -> LocalService:
        model = ModelConfig(
            source=source, served_names=("far",), framework="vllm", interpreter=str(python), options=options
        )
        services.append(LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path)))
        return services[-1]

    yield make
    for service in services:
        await service.aclose()


async def ask(service: LocalService) -> Any:
    async with asyncio.timeout(WAIT_S), await service.generate(REQUEST) as stream:
        return json.loads("".join([delta.text async for delta in stream]))


async def test_it_is_started_with_its_flags_asked_and_ended_with_all_that_it_started(launch: Any) -> None:
    service = launch("some/model", arguments=["--max-model-len", "99"])
    told = await ask(service)
    assert told["arguments"][0] == "some/model"
    assert told["arguments"][-2:] == ["--max-model-len", "99"]
    assert (told["body"]["model"], told["body"]["top_k"]) == ("far", 3)
    assert service.models()[0].max_model_len == 99
    (pid,) = service.worker_pids().values()
    assert set(told["pids"]) <= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    await service.aclose()
    await until(lambda: not any(psutil.pid_exists(each) for each in (pid, *told["pids"])))


async def test_one_that_dies_is_started_again(launch: Any) -> None:
    service = launch("it-dies")
    first = await ask(service)
    await until(lambda: service.models()[0].state != "ready")
    second = await ask(service)
    assert set(first["pids"]).isdisjoint(second["pids"])
    await until(lambda: not psutil.pid_exists(first["pids"][1]))


async def test_one_that_does_not_start_says_its_last_words(launch: Any) -> None:
    service = launch("it-is-bad")
    with pytest.raises(ModelError, match=r"exit code 3 .*vLLM knows no such architecture"):
        await service.generate(REQUEST)


def test_nothing_outlives_a_headway_that_was_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from headway.worker.launched import start_server

async def main():
    server = await start_server("far", ["{sys.executable}", "{FAKE}", "--model", "x", "--served-model-name", "n",
                                        "--port", "0"], {{}})
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as headway:
        assert headway.stdout is not None
        guard = psutil.Process(int(headway.stdout.readline()))
        family = [guard]
        while len(family) < 3:
            family = [guard, *guard.children(recursive=True)]
        os.kill(headway.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(family, timeout=WAIT_S)
    assert (len(gone), alive) == (3, [])


@pytest.mark.parametrize(
    ("source", "options", "mode"),
    [
        ("some/model", {}, "launch"),
        ("http://there/v1", {}, "url"),
        ("some/model", {"url": "http://there/v1"}, "url"),
        ("some/model", {"mode": "embedded"}, "embedded"),
    ],
)
def test_its_mode_is_named_or_told_by_the_address(source: str, options: dict[str, Any], mode: str) -> None:
    model = ModelConfig(source=source, framework="vllm", options=options)
    assert vllm_mode(model) == mode
    assert is_elsewhere(model) == (mode == "url")


async def test_an_environment_without_vllm_says_so(tmp_path: Path) -> None:
    model = ModelConfig(source="x", served_names=("far",), framework="vllm", interpreter=sys.executable)
    service = LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path))
    with pytest.raises(ModelError, match="vllm"):
        await service.generate(REQUEST)
    await service.aclose()


async def test_by_its_address_and_with_options_that_there_are_not(launch: Any, tmp_path: Path) -> None:
    with pytest.raises(UpstreamFailed, match="not reached"):
        await launch("http://127.0.0.1:9/v1").generate(REQUEST)
    with pytest.raises(InvalidConfig, match="max_model_len"):
        await launch("x", max_model_len=3).generate(REQUEST)
