"""Real children over real sockets: how they live, and each way in which they end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import headway_wire as wire
from headway.observe.processes import describe_exit
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import PREDICTOR
from headway.testing.tiny_model import write_tiny_model
from headway.worker.channel import EXIT_LOST_PAGE, WorkerEnd
from headway.worker.process import WorkerProcess, start_process
from headway.worker.socket_inbox import EXIT_BAD_PARENT

HI = list(b"hi")
WAIT_S = 30.0


def load(**script: Any) -> wire.Load:
    plain = msgspec.to_builtins(Script(**script), builtin_types=(bytes,))
    return wire.Load(predictor=PREDICTOR, source="x", options={"script": plain})


class Listener:
    def __init__(self) -> None:
        self.said: list[wire.Up] = []
        self.ends: list[WorkerEnd] = []
        self.worker: WorkerProcess | None = None
        self._news = asyncio.Event()

    def take_plain(self, payload: bytes) -> bytes:
        return payload

    def on_messages(self, messages: Sequence[wire.Up]) -> None:
        self.said += messages
        self._news.set()

    def on_end(self, end: WorkerEnd) -> None:
        self.ends.append(end)
        self._news.set()

    async def until(self, is_there: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_there():
                self._news.clear()
                await self._news.wait()

    async def start(self, *messages: wire.Down, python: str | None = None) -> WorkerProcess:
        self.worker = await start_process("tiny", self, python=python)
        for message in messages:
            self.worker.send(message)
        return self.worker

    def has(self, kind: type[Any]) -> bool:
        return any(isinstance(message, kind) for message in self.said)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    yield listener
    if listener.worker is not None:
        await listener.worker.close(0.0)
        assert len(listener.ends) == 1


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_child_loads_answers_and_ends_when_asked(listener: Listener) -> None:
    worker = await listener.start(load(reply=say("yo")), wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: any(isinstance(m, wire.Step) and m.events[-1].finish_reason for m in listener.said))
    await worker.close(WAIT_S)
    assert listener.ends == [WorkerEnd("ended with exit code 0", "")]
    assert not is_running(worker.pid)
    kinds = [type(message) for message in listener.said]
    assert kinds[:5] == [wire.Loading] * 3 + [wire.Ready, wire.Stats]


async def test_stats_tell_what_sending_costs_the_engines_thread(listener: Listener) -> None:
    def seconds() -> list[float]:
        return [m.values["wire_cpu_seconds_total"] for m in listener.said if isinstance(m, wire.Stats)]

    worker = await listener.start(load(reply=say("yo")))
    await listener.until(seconds)
    worker.send(wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: len(seconds()) == 2)
    assert 0 < seconds()[0] < seconds()[1] < 1


async def test_kill_9_is_told_by_its_name(listener: Listener) -> None:
    endless = say("x", is_endless=True, delay_s=0.001)
    worker = await listener.start(load(reply=endless), wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: listener.has(wire.Step))
    os.kill(worker.pid, signal.SIGKILL)
    await listener.until(lambda: listener.ends)
    assert listener.ends[0].how == "was ended by SIGKILL"


async def test_a_child_that_vanishes_without_a_word_is_told(listener: Listener) -> None:
    await listener.start(load(reply=Reply(exit_at=0)), wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: listener.ends)
    assert listener.ends[0].how == "ended with exit code 9"


async def test_an_exception_that_escapes_is_failed_then_an_end_with_its_last_words(listener: Listener) -> None:
    await listener.start(load(reply=Reply(raise_at=0)), wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: listener.ends)
    assert isinstance(listener.said[-1], wire.Failed)
    assert listener.ends[0].how == "ended with exit code 1"
    assert "RuntimeError: scripted to raise at 0" in listener.ends[0].last_words


@pytest.mark.parametrize(
    ("predictor", "words", "exit_code"),
    [
        ("BetweenTensors", "has shrunk from {size} to 4096 bytes since it was opened", 1),
        ("Overwritten", "has been written to since it was opened", 1),
        ("WithinATensor", "was cut while it was read, or its disk failed", EXIT_LOST_PAGE),
    ],
)
async def test_a_child_whose_model_is_cut_while_it_loads_says_which_file_it_was(
    listener: Listener,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    predictor: str,
    words: str,
    exit_code: int,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    source = write_tiny_model(tmp_path / "model")
    size = (source / "model.safetensors").stat().st_size
    await listener.start(
        wire.Load(
            predictor=f"worker.cutting_predictor:{predictor}",
            source=str(source),
            options={"threads": 1, "kv_cache_memory": 1 << 20},
        )
    )
    await listener.until(lambda: listener.ends)
    failed = listener.said[-1]
    assert isinstance(failed, wire.Failed)
    assert failed.error.kind == "CorruptCheckpoint"
    assert failed.error.message.startswith(f"{source}/model.safetensors {words.format(size=size)}")
    assert "by renaming another over it" in failed.error.message
    assert listener.ends[0].how == f"ended with exit code {exit_code}"


async def test_another_bus_error_kills_as_before(listener: Listener) -> None:
    await listener.start(load())
    await listener.until(lambda: listener.has(wire.Ready))
    os.kill(listener.worker.pid, signal.SIGBUS)
    await listener.until(lambda: listener.ends)
    assert listener.ends[0].how == "was ended by SIGBUS"


async def test_a_step_that_never_ends_is_ended_by_the_end_of_file(listener: Listener) -> None:
    worker = await listener.start(load(reply=Reply(hang_at=0)), wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: listener.has(wire.Accepted))
    await worker.close(0.05)
    assert listener.ends[0].how in ("ended with exit code 0", "was ended by SIGKILL")


COUNT_FRAMES = """
data, num_frames = s.recv(1 << 20), 0
while data:
    data, num_frames = data[4 + int.from_bytes(data[:4], "little"):], num_frames + 1
print(num_frames)
"""


async def test_what_one_turn_of_the_event_loop_sends_goes_out_in_one_write(listener: Listener, tmp_path: Path) -> None:
    submits = [wire.Submit(request_id=name, prompt_token_ids=HI) for name in "abc"]
    await listener.start(*submits, python=fake_child(tmp_path, COUNT_FRAMES))
    await listener.until(lambda: listener.ends)
    assert listener.ends[0].last_words == "3"


async def test_a_child_that_heeds_nothing_is_killed(listener: Listener, tmp_path: Path) -> None:
    body = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); s.sendall(FRAME); time.sleep(600)"
    frame = wire.pack_frame(wire.encode(wire.Accepted(request_id="r")))
    worker = await listener.start(python=fake_child(tmp_path, f"FRAME = {frame!r}\n{body}"))
    await listener.until(lambda: listener.said)
    await worker.close(0.01)
    assert listener.ends[0].how == "was ended by SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_whole_group_does_not_end_it(listener: Listener, number: signal.Signals) -> None:
    worker = await listener.start(load())
    # Before its interpreter runs a line, while it loads, and when it is ready.
    os.kill(worker.pid, number)
    await listener.until(lambda: listener.has(wire.Loading))
    os.kill(worker.pid, number)
    await listener.until(lambda: listener.has(wire.Ready))
    os.kill(worker.pid, number)
    worker.send(wire.Submit(request_id="r", prompt_token_ids=HI))
    await listener.until(lambda: listener.has(wire.Accepted))
    assert listener.ends == []


async def test_a_shutdown_during_the_load_ends_it_at_once(listener: Listener, tmp_path: Path) -> None:
    worker = await listener.start(load(load_waits_for=str(tmp_path / "never")))
    await listener.until(lambda: listener.has(wire.Loading))
    await worker.close(WAIT_S)
    assert listener.ends[0].how == "ended with exit code 0"


@pytest.mark.parametrize(
    "script", [{}, {"reply": Reply(hang_at=0)}, {"load_waits_for": "/no/such/place"}], ids=["idle", "stuck", "loading"]
)
async def test_a_child_never_outlives_its_parent(script: dict[str, Any]) -> None:
    message = wire.encode(load(**script))
    submit = wire.encode(wire.Submit(request_id="r", prompt_token_ids=HI))
    parent_source = textwrap.dedent(
        f"""
        import asyncio
        import headway_wire as wire
        from headway.worker.process import start_process

        class Listener:
            def take_plain(self, payload):
                return payload
            def on_messages(self, messages):
                for message in messages:
                    print(type(message).__name__, flush=True)
            def on_end(self, end):
                print("end", flush=True)

        async def main():
            worker = await start_process("tiny", Listener())
            print(worker.pid, flush=True)
            worker.send(wire.decode_down({message!r}))
            worker.send(wire.decode_down({submit!r}))
            await asyncio.Event().wait()

        asyncio.run(main())
        """
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_source, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    async with asyncio.timeout(WAIT_S):
        child = psutil.Process(int(await parent.stdout.readline()))
        is_loading = "load_waits_for" in script
        while (await parent.stdout.readline()).strip() != (b"Loading" if is_loading else b"Accepted"):
            pass
        parent.kill()
        await parent.wait()
        await asyncio.to_thread(psutil.wait_procs, [child], WAIT_S)
    assert not is_running(child.pid)


def spawn_raw() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "headway.worker.serve", "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
        )
    ours.settimeout(WAIT_S)
    return ours, child


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", 0),
        (wire.pack_frame(wire.encode(load()))[:3], 0),
        (wire.pack_frame(wire.encode(load()))[:-1], 0),
        (b"\xff\xff\xff\xff", EXIT_BAD_PARENT),
        (wire.pack_frame(b"\xc1"), EXIT_BAD_PARENT),
        (wire.pack_frame(wire.encode(wire.Accepted(request_id="r"))), EXIT_BAD_PARENT),
    ],
    ids=["nothing", "cut length", "cut payload", "absurd length", "garbage", "wrong direction"],
)
def test_a_cut_or_foreign_stream_from_the_parent_ends_the_child(data: bytes, code: int) -> None:
    ours, child = spawn_raw()
    with ours, child:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        assert child.wait(WAIT_S) == code


def test_frames_that_come_byte_by_byte_are_understood() -> None:
    ours, child = spawn_raw()
    with ours, child:
        for byte in wire.pack_frame(wire.encode(load(phases=()))) + wire.pack_frame(
            wire.encode(wire.Submit(request_id="r", prompt_token_ids=HI))
        ):
            ours.sendall(bytes((byte,)))
        reader, said = wire.FrameReader(), list[wire.Up]()
        while not any(isinstance(message, wire.Accepted) for message in said):
            said += map(wire.decode_up, reader.feed(ours.recv(4096)))
        ours.sendall(wire.pack_frame(wire.encode(wire.Shutdown())))
        assert child.wait(WAIT_S) == 0


def fake_child(tmp_path: Path, body: str) -> str:
    """An interpreter that is none: it gets the worker's arguments and does what `body` says with its socket `s`."""
    path = tmp_path / "child"
    path.write_text(
        f"#!{sys.executable}\nimport socket, sys, time, os\n"
        f"s = socket.socket(fileno=int(sys.argv[sys.argv.index('--fd') + 1]))\n{body}\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "how", "num_messages"),
    [
        ("s.sendall(b'\\xff\\xff\\xff\\xff'); s.recv(1)", "sent what is no message", 0),
        ("s.sendall(b'\\x01\\0\\0\\0\\xc1'); s.recv(1)", "sent what is no message", 0),
        ("s.sendall(FRAME + b'\\x01\\0\\0\\0\\xc1'); s.recv(1)", "sent what is no message", 1),
        ("s.sendall(FRAME + FRAME[:-1])", "ended with exit code 0", 1),
        ("s.sendall(FRAME); s.close(); time.sleep(60)", "closed its connection and was killed", 1),
        ("s.sendall(FRAME); os.fork() or time.sleep(5); os._exit(4)", "ended with exit code 4", 1),
    ],
    ids=["absurd length", "garbage", "garbage behind a message", "cut frame", "closed and alive", "socket kept open"],
)
async def test_a_child_that_breaks_the_rules_is_ended_and_told_once(
    listener: Listener, tmp_path: Path, body: str, how: str, num_messages: int
) -> None:
    frame = wire.pack_frame(wire.encode(wire.Accepted(request_id="r")))
    await listener.start(python=fake_child(tmp_path, f"FRAME = {frame!r}\n{body}"))
    await listener.until(lambda: listener.ends)
    assert listener.ends[0].how.startswith(how)
    assert len(listener.said) == num_messages


async def test_messages_cut_at_every_offset_are_put_together(listener: Listener) -> None:
    worker = await listener.start()
    first, second = wire.Accepted(request_id="r"), wire.Stats(values={"x": 1.0})
    stream = wire.pack_frame(wire.encode(first)) + wire.pack_frame(wire.encode(second))
    for cut in range(len(stream) + 1):
        listener.said.clear()
        worker.data_received(stream[:cut])
        worker.data_received(stream[cut:])
        assert listener.said == [first, second]


async def test_output_is_kept_by_lines_and_bounded(listener: Listener, tmp_path: Path) -> None:
    body = "print('first'); print('x' * 100_000); print('\\xff half', end='', flush=True); s.recv(1)"
    worker = await listener.start(python=fake_child(tmp_path, body))
    worker.send(wire.Shutdown())
    await listener.until(lambda: listener.ends)
    words = listener.ends[0].last_words
    assert words.startswith("first\nxxx")
    assert words.endswith("half")
    assert len(words) < 13 * 4096 + 100


async def test_an_interpreter_that_is_not_there_is_an_error_at_once(listener: Listener) -> None:
    with pytest.raises(OSError, match="no-such-python"):
        await listener.start(python="/no-such-python")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (-9, "was ended by SIGKILL"),
        (-11, "was ended by SIGSEGV"),
        (-200, "was ended by signal 200"),
        (None, "ended"),
    ],
)
def test_an_exit_code_in_words(code: int | None, words: str) -> None:
    assert describe_exit(code) == words
