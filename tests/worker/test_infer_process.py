"""Real processes of models that take tensors: how they live, each way in which they end, and other interpreters."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import headway_wire as wire
from headway.config import InferConfig, ModelConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import HeadwayError, InferenceFailed, InvalidConfig, OutOfMemory, UnsupportedModel, WorkerDied
from headway.observe.clock import SystemClock
from headway.service.infer_loading import infer_load_message
from headway.testing.scripted_model import PREDICTOR
from headway.worker.infer_client import InferClient
from headway.worker.infer_process import start_infer_process
from headway.worker.resident import ClientSettings
from headway.worker.stream import StreamLimits

WAIT_S = 30.0


class Model:
    """A scripted model in processes of its own."""

    def __init__(self, config: InferConfig | None = None, python: str | None = None) -> None:
        self.config = config or InferConfig()
        settings = ClientSettings(
            limits=StreamLimits(1, 1.0),
            stall_timeout_s=120.0,
            clock=SystemClock(),
            max_queued=None,
            on_lost=lambda: None,
            on_loading=lambda loading: None,
        )
        self.client = InferClient("m", settings, self.config, functools.partial(start_infer_process, python=python))

    async def load(self, message: wire.Load | None = None, **options: Any) -> wire.Ready:
        await self.client.start()
        return await self.client.load(message or scripted(self.config, **options))

    async def ask(self, value: Any, **fields: Any) -> Inferred:
        request = InferRequest(request_id="r", model="m", value=value, **fields)
        return await self.client.infer(request, lambda has_served: None)


def scripted(config: InferConfig | None = None, **options: Any) -> wire.Load:
    config = config or InferConfig()
    return wire.Load(
        predictor=PREDICTOR,
        source="x",
        options=options,
        max_batch_size=config.max_batch_size,
        batch_delay_s=config.batch_delay_s,
    )


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    model = Model()
    yield model
    async with asyncio.timeout(WAIT_S):
        await model.client.close(0.5)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until_gone(pids: list[int]) -> None:
    """Of other processes' children, of which nobody is told when they are gone."""
    until = time.monotonic() + WAIT_S
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.002)


async def open_gate(path: Path) -> None:
    """Returns once the model has come to the gate, and is through it."""
    await asyncio.to_thread(lambda: path.open("wb").close())


async def test_it_loads_answers_and_its_lines_are_logged(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ready = await model.load()
    assert ready.info == {"task": "tensor", "platform": "scripted", "can_batch": True}
    answer = await model.ask({"echo": [1, b"\x00"], "print": "a line of the model"}, parameters={"k": 1})
    (pid,) = model.client.pids
    assert answer.value == {"echo": [1, b"\x00"], "batch": 1, "pid": pid, "parameters": {"k": 1}}
    await model.client.close(0.5)
    assert "m: a line of the model" in [record.getMessage() for record in caplog.records]
    assert not is_running(pid)


async def test_what_comes_while_it_computes_is_one_batch(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    model = Model(InferConfig(max_batch_size=8))
    await model.load()
    first = asyncio.create_task(model.ask({"gate": str(gate), "echo": 0}))
    await asyncio.sleep(0)
    writer = await asyncio.to_thread(gate.open, "wb")
    others = [asyncio.create_task(model.ask({"echo": it})) for it in range(1, 4)]
    await asyncio.sleep(0)
    writer.close()
    answers = [answer.value for answer in await asyncio.gather(first, *others)]
    assert [(answer["echo"], answer["batch"]) for answer in answers] == [(0, 1), (1, 3), (2, 3), (3, 3)]
    await model.client.close(0.5)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        ({"raise": "SystemExit", "words": "3"}, InferenceFailed, "SystemExit: 3"),
        ({"raise": "RuntimeError", "words": "no"}, InferenceFailed, "RuntimeError: no"),
        ({"answer": "object"}, InferenceFailed, "can not be sent"),
        ({"answer": "huge"}, InferenceFailed, "can not be sent"),
    ],
)
async def test_it_lives_on_after_what_fails_a_request(
    model: Model, act: dict[str, Any], error: type[HeadwayError], words: str
) -> None:
    await model.load()
    with pytest.raises(error, match=words):
        await model.ask(act)
    assert (await model.ask({"echo": 1})).value["echo"] == 1
    assert not model.client.ended.done()


async def test_a_fork_of_the_model_s_does_not_answer(model: Model) -> None:
    await model.load()
    answers = await asyncio.gather(*(model.ask({"fork": True, "echo": it}) for it in range(3)))
    assert [answer.value["echo"] for answer in answers] == [0, 1, 2]
    assert {answer.value["pid"] for answer in answers} == set(model.client.pids)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ({"exit": 5}, "ended with exit code 5"),
        ({"kill": int(signal.SIGSEGV)}, "was ended by SIGSEGV"),
        ({"raise": "MemoryError", "words": "4 GB"}, "failed: the model's process ran out of memory: .*4 GB"),
    ],
)
async def test_its_death_fails_what_is_open(model: Model, act: dict[str, Any], words: str) -> None:
    await model.load()
    with pytest.raises(WorkerDied, match=words):
        await model.ask(act)
    assert (await model.client.ended).message.startswith("the process of model m")


@pytest.mark.parametrize("end", ["closed", "killed", "exits"])
async def test_what_the_model_started_ends_with_it(model: Model, tmp_path: Path, end: str) -> None:
    code = """
import multiprocessing, os, subprocess, sys, time
class Model:
    def load(self):
        self.forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        self.forked.start()
        self.command = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    def predict(self, value):
        return os._exit(1) if value == "exits" else [self.forked.pid, self.command.pid]
"""
    (tmp_path / "model.py").write_text(code)
    await model.load(infer_load_message(ModelConfig(source="x", framework="python"), tmp_path))
    started = (await model.ask("pids")).value
    assert all(is_running(pid) for pid in started)
    if end == "killed":
        os.kill(model.client.pids[0], signal.SIGKILL)
        await model.client.ended
    elif end == "exits":
        with pytest.raises(WorkerDied):
            await model.ask(end)
    else:
        await model.client.close(0.5)
    await asyncio.to_thread(wait_until_gone, started)


async def test_a_load_that_fails_is_told(model: Model) -> None:
    with pytest.raises(OutOfMemory, match="8 GB"):
        await model.load(load={"raise": "MemoryError", "words": "8 GB"})


async def test_a_predictor_that_can_not_be_imported(model: Model) -> None:
    with pytest.raises(UnsupportedModel, match="No module named 'nowhere'"):
        await model.load(wire.Load(predictor="nowhere:X", source="x"))


async def test_closing_ends_one_that_computes_and_one_that_loads(tmp_path: Path) -> None:
    gates = [tmp_path / "computes", tmp_path / "loads"]
    for gate in gates:
        os.mkfifo(gate)
    computes, loads = Model(), Model()
    await computes.load()
    await loads.client.start()
    tasks = [
        asyncio.create_task(computes.ask({"gate": str(gates[0])})),
        asyncio.create_task(loads.client.load(scripted(load={"gate": str(gates[1])}))),
    ]
    await asyncio.sleep(0)
    pids = [*computes.client.pids, *loads.client.pids]
    # A writer that is opened and not closed: both are at their gates, and stay there.
    writers = [await asyncio.to_thread(gate.open, "wb") for gate in gates]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(computes.client.close(0.0), loads.client.close())
    for task in tasks:
        with pytest.raises(HeadwayError):
            await task
    assert not any(is_running(pid) for pid in pids)
    for writer in writers:
        writer.close()


async def test_it_ends_with_its_parent_even_while_it_computes(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    model = Model()
    await model.load()
    (pid,) = model.client.pids
    asking = asyncio.create_task(model.ask({"gate": str(gate)}))
    await asyncio.sleep(0)
    writer = await asyncio.to_thread(gate.open, "wb")
    channel = model.client._instances[0].channel
    assert channel is not None
    channel._send_end_of_file()  # type: ignore[attr-defined]
    async with asyncio.timeout(WAIT_S):
        error = await model.client.ended
    assert "ended with exit code 0" in error.message
    assert not is_running(pid)
    with pytest.raises(WorkerDied):
        await asking
    writer.close()


async def test_ctrl_c_and_sigterm_are_its_parent_s_to_act_on(model: Model) -> None:
    await model.load()
    (pid,) = model.client.pids
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    assert (await model.ask({"echo": 1})).value["pid"] == pid


async def test_two_instances_compute_at_the_same_time(tmp_path: Path) -> None:
    gates = [tmp_path / "a", tmp_path / "b"]
    for gate in gates:
        os.mkfifo(gate)
    model = Model(InferConfig(instances=2))
    await model.load()
    tasks = [asyncio.create_task(model.ask({"gate": str(gate)})) for gate in gates]
    await asyncio.sleep(0)
    # The second gate is reached while the first is shut.
    await open_gate(gates[1])
    await open_gate(gates[0])
    answers = await asyncio.gather(*tasks)
    assert {answer.value["pid"] for answer in answers} == set(model.client.pids)
    assert len(model.client.pids) == 2
    await model.client.close(0.5)


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A virtual environment with msgspec and nothing else, where Headway can not be imported."""
    folder = tmp_path_factory.mktemp("other") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # As the package is installed here: one folder, linked, so that nothing else beside it comes along.
    import msgspec

    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return str(folder / "bin" / "python")


async def test_another_interpreter_needs_msgspec_alone(other_python: str, tmp_path: Path) -> None:
    code = """
import sys
class Model:
    def predict(self, value):
        names = [name for name in ("headway.errors", "headway_wire", "numpy") if name in sys.modules]
        try:
            import headway.errors
        except ImportError as error:
            return [sys.prefix, names, str(error), [path for path in sys.path if "site-packages" in path]]
"""
    (tmp_path / "model.py").write_text(code)
    config = ModelConfig(source="x", framework="python", interpreter=other_python)
    model = Model(python=other_python)
    ready = await model.load(infer_load_message(config, tmp_path))
    assert ready.info["platform"] == "python"
    prefix, names, error, packages = (await model.ask(1)).value
    folder = str(Path(other_python).parents[1])
    assert (prefix, names) == (folder, ["headway_wire"])
    assert "headway.errors" in error
    assert all(path.startswith(folder) for path in packages), "no site-packages of ours"
    await model.client.close(0.5)


async def test_another_interpreter_without_msgspec_says_so(tmp_path: Path) -> None:
    python = tmp_path / "bare" / "bin" / "python"
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True
    )
    model = Model(python=str(python))
    with pytest.raises(InvalidConfig, match=f"{python} can not serve a model: No module named 'msgspec'; install"):
        await model.load()
    await model.client.close(0.0)
