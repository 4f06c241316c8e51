"""`headway serve` as a process of its own, over a scripted model in a real child."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headway.cli.serve import Told
from headway.errors import OutOfMemory
from headway.service.protocol import ModelCard

SERVE = """
import sys
from headway.cli.main import run
from headway.cli import serve
from headway.cli.resolve import resolve_settings
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService
import headway_wire as wire

def act(given):
    settings = resolve_settings({name: value for name, value in given.items() if name != "config"})
    config = settings.to_configs().server
    error = wire.Error(kind=FAILS, message="4 GiB are needed") if FAILS else None
    script = Script(reply=say("Hello you"), load_error=error)
    return serve.serve_service(ScriptedService(script, is_in_process=False), config, has_chat=HAS_CHAT)

serve._act = act
sys.exit(run(["serve", *sys.argv[1:]]))
"""


@contextmanager
def serving(*args: str, fails: str = "", has_chat: bool = True, **environment: str) -> Iterator[Any]:
    """The process and an iterator over its lines; what still runs at the end is killed."""
    code = SERVE.replace("FAILS", repr(fails)).replace("HAS_CHAT", str(has_chat))
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, "scripted", "--port", "0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: Any, prefix: str) -> list[str]:
    """What it prints, up to and with the first line that begins so."""
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(prefix):
            return lines
    raise AssertionError(f"it ended with {process.wait()}: {lines} {process.stderr.read()}")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("key", "has_chat"), [("", True), ("it's $secret", True), ("", False)])
def test_it_says_what_it_does_answers_the_line_that_it_prints_and_ends_with_0(key: str, has_chat: bool) -> None:
    with serving(has_chat=has_chat, HEADWAY_API_KEY=key) as process:
        lines = lines_until(process, "curl ")
        assert lines[0].startswith("Headway ")
        assert "listens on http://127.0.0.1:" in lines[0]
        assert lines[1] == "scripted (scripted) is ready, context 4,096 tokens"
        assert lines[2].startswith("loaded in ")
        assert "build" in lines[2]
        assert "secret" not in "".join(lines)
        pasted = subprocess.run(
            ["bash", "-c", lines[-1]],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HEADWAY_API_KEY": key},
        )
        choice = json.loads(pasted.stdout)["choices"][0]
        assert (choice["message"]["content"] if has_chat else choice["text"]) == "Hello you"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "\x1b" not in process.stderr.read()


def test_ctrl_c_ends_it_as_sigterm_does() -> None:
    with serving() as process:
        lines_until(process, "curl ")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("kind", "code"), [("OutOfMemory", 1), ("CorruptCheckpoint", 1), ("InvalidConfig", 2)])
def test_a_model_that_does_not_load_ends_it_with_the_reason_told_once(kind: str, code: int) -> None:
    with serving(fails=kind) as process:
        out, err = process.communicate()
        assert process.returncode == code
        told = [line for line in err.splitlines() if line.startswith("headway: ")]
        assert told == ["headway: scripted could not be loaded: 4 GiB are needed"]
        assert "listens on" in out
        assert "Traceback" not in err


def test_a_port_that_is_taken_is_one_line_and_exit_code_2() -> None:
    with serving() as first:
        port = lines_until(first, "Headway ")[0].partition("127.0.0.1:")[2].partition(",")[0]
        with serving("--port", port) as second:
            out, err = second.communicate()
            assert (second.returncode, out) == (2, ""), err
            assert f"port {port} on 127.0.0.1 is in use" in err
            assert "Traceback" not in err


def test_without_a_model_it_stays_up_and_serves_what_the_catalog_has_and_will_have(tmp_path: Path) -> None:
    """The whole program: no model, then one that another command adds while it runs."""
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "from headway.cli import start; start()"]
    with subprocess.Popen(
        [*command, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            lines = lines_until(process, "Models are loaded when they are asked for")
            assert "serves 0 models of sqlite:///" in lines[0]
            assert lines[1] == "Add one, now or later: headway models add demo"
            url = lines[-1].partition("; ")[2].removesuffix(" lists them")
            assert httpx2.get(url).json() == {"data": [], "object": "list"}
            add = [*command, "models", "add", "demo", "--id", "m"]
            subprocess.run(add, env=environment, check=True, capture_output=True)
            with_deadline = time.monotonic() + 30
            while not (data := httpx2.get(url).json()["data"]):
                assert time.monotonic() < with_deadline
                time.sleep(0.05)
            assert [(model["id"], model["state"]) for model in data] == [("m", "cold")]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


class Cards:
    """A service that only has models."""

    def __init__(self, *cards: ModelCard) -> None:
        self.cards = list(cards)

    def models(self) -> list[ModelCard]:
        return self.cards


def test_what_is_told_names_aliases_and_the_memory_plan(capsys: pytest.CaptureFixture[str]) -> None:
    info = {"plan": ["weights    1.0 GiB", "KV cache   2.0 GiB"]}
    first = ModelCard("a", 0, "ready", 4096, "org/name", phases=(("read", 1.0), ("warm", 0.5)), info=info, model="a")
    second = ModelCard("b", 0, "ready", 4096, "org/name", kind="alias", model="a")
    service: Any = Cards(first, second, ModelCard("c", 0, "cold", None, "of the catalog", model="c"))
    told = Told(service, has_key=False, has_chat=True)
    told.listening("http://127.0.0.1:1")
    told.ready()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6] == [
        "a (org/name) is ready, context 4,096 tokens, also as b",
        "loaded in 1.5 s: read 1.0 s, warm 0.5 s",
        "weights    1.0 GiB",
        "KV cache   2.0 GiB",
        "Try it:",
    ]


def test_a_load_that_the_log_has_told_is_not_told_again(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headway")
    card = ModelCard("a", 0, "ready", None, "org/name", phases=(("read", 1.0),), model="a")
    service: Any = Cards(card)
    told = Told(service, has_key=False, has_chat=True)
    told.listening("http://127.0.0.1:1")
    told.ready()
    assert "loaded in" not in capsys.readouterr().out


def test_a_failed_load_stops_the_server_once_it_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    service: Any = Cards()
    told = Told(service, has_key=False, has_chat=True)
    stops: list[None] = []
    told.stop = lambda: stops.append(None)
    told.failed("a", OutOfMemory("why"))
    assert (told.exit_code, len(stops)) == (1, 1)
    assert capsys.readouterr().err == "headway: a could not be loaded: why\n"
