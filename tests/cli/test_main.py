"""The command line as a whole: what is printed where, and the exit code."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.cli import main as cli
from headway.cli.main import COMMANDS, run
from headway.cli.options import make_command
from headway.errors import CorruptCheckpoint, InvalidConfig
from headway.testing.tiny_model import write_tiny_model

PYTHON = [sys.executable, "-c", "from headway.cli import start; start()"]


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`headway serve` calls what is put here: an exception to raise, or an exit code to return."""
    acts: list[Any] = []

    class Module:
        @staticmethod
        def make() -> Any:
            def act(given: dict[str, Any]) -> Any:
                if isinstance(acts[0], BaseException):
                    raise acts[0]
                return acts[0]

            return make_command(act, [], help_text="Serve.")

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Module)
    return acts


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'rich', 'pydantic', 'pydantic_settings', 'numpy', 'msgspec', 'yaml', 'torch', 'fastapi'}"
    code = (
        "import sys\n"
        "from headway.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, (_, line) in COMMANDS.items():
        assert name in done.stdout
        assert line in done.stdout


def test_ctrl_c_while_the_modules_are_read_is_quiet() -> None:
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from headway.cli import start; start()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_closed_standard_descriptors_are_not_taken_by_the_next_socket() -> None:
    code = (
        "import os, socket, sys\n"
        "os.closerange(0, 3)\n"
        "sys.argv, sys.stdin, sys.stdout, sys.stderr = ['headway', 'version'], None, None, None\n"
        "from headway.cli import start\n"
        "try:\n"
        "    start()\n"
        "except SystemExit as end:\n"
        "    os._exit(socket.socket().fileno() if end.code == 0 else 99)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert 2 < done.returncode < 99


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: headway {name}")


@pytest.mark.parametrize("args", [["--version"], ["version"]])
def test_the_version_is_printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 0
    assert capsys.readouterr().out == f"headway {headway.__version__}\n"


def test_nothing_at_all_is_a_question_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--prot", "1"], "--prot is not a flag of headway serve; did you mean --port?"),
        (["serve", "--max_nun_seqs", "1"], "did you mean --max-num-seqs?"),
        (["serve", "--zzz"], "--zzz is not a flag of headway serve; headway serve --help lists them"),
        (["serve", "--no-enable-prefix-cache"], "did you mean --no-enable-prefix-caching?"),
        (["serve", "demo", "more"], "unexpected extra argument"),
        (["serve", "--port"], "requires an argument"),
        (["serve", "demo", "--pipeline_parallel_size=2"], "--pipeline-parallel-size is not a flag of Headway: a model"),
        (["chat", "-tp", "2"], "-tp is not a flag of Headway"),
        (["serve", "demo", "--port", "x"], "--port is 'x'"),
        (["inspect"], "no model is named"),
        (["serve", "--max-model-len", "4k"], "--max-model-len is about MODEL, and none is named"),
        (["serve", "--models-file", "/nowhere.yaml"], "/nowhere.yaml cannot be read"),
        (["serve", "--catalog", "--models-file", "x.yaml"], "both say which models there are"),
        (["serve", "--database-url", "mysql://h/x"], "Headway knows SQLite and PostgreSQL"),
        (["serve", "demo", "--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others"),
        (["serve", "demo", "--config", "/nowhere.yaml"], "/nowhere.yaml cannot be read"),
        (["generate"], "missing argument 'PROMPT'"),
        (["generate", "x", "--temperature", "-1"], "temperature is -1.0; it must be at least 0"),
        (["generate", "x", "--temperature", "hot"], "invalid value for '--temperature'"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens is 0; it must be at least 1"),
        (["chat", "demo", "--url", "http://127.0.0.1:1"], "model would have no effect"),
        (["chat", "--url", "ftp://x"], "--url ftp://x is no address"),
        (["sreve"], "Did you mean 'serve'?"),
        (["pull"], "missing argument 'MODEL'"),
    ],
)
def test_a_callers_mistake_is_one_line_on_stderr_and_the_exit_code_2(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("headway: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (InvalidConfig("a value is wrong"), 2, "headway: a value is wrong\n"),
        (CorruptCheckpoint("the file is cut"), 1, "headway: the file is cut\n"),
        (ZeroDivisionError("x"), 1, "headway: internal error: ZeroDivisionError: x (HEADWAY_DEBUG=1 shows where)\n"),
        (KeyboardInterrupt(), 130, ""),
        (3, 3, ""),
        (None, 0, ""),
    ],
)
def test_every_end_has_its_exit_code_and_no_traceback(
    act: Any, code: int, words: str, acted: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    acted.append(act)
    assert run(["serve"]) == code
    assert capsys.readouterr() == ("", words)


def test_headway_debug_shows_the_traceback(
    acted: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_DEBUG", "1")
    acted.append(ZeroDivisionError("x"))
    assert run(["serve"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_has_gone_ends_the_command_quietly() -> None:
    with subprocess.Popen(
        [*PYTHON, "serve", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait() == 1


def test_completion_knows_the_flags_of_a_command_that_is_loaded_late() -> None:
    environment = {"_HEADWAY_COMPLETE": "complete_bash", "COMP_WORDS": "headway serve --max-num", "COMP_CWORD": "2"}
    done = subprocess.run(PYTHON, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["--max-num-seqs", "--max-num-batched-tokens"]


def test_inspect_and_pull_take_a_folder_that_is_no_model_for_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("inspect", "pull", "serve"):
        assert run([command, str(tmp_path)]) in (1, 2)
        out, err = capsys.readouterr()
        assert out == ""
        assert str(tmp_path) in err
        assert "internal error" not in err


def test_inspect_tells_the_program_and_what_the_weights_run_as(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    assert run(["inspect", model]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == model
    assert "logits" in lines[-3]
    assert lines[-2].startswith("KV cache: ")
    assert lines[-1].startswith("F32   runs as bf16      9 matrices")
    assert lines[-1].endswith("values are rounded")
    assert run(["inspect", model, "--quantization", "int4"]) == 0
    forms = [line.split()[3] for line in capsys.readouterr().out.splitlines() if " runs as " in line]
    assert sorted(forms) == ["q4", "q8"]  # layers, and the embedding with the head
