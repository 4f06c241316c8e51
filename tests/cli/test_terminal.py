import io
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from headway.cli.terminal import fetch_bar, for_terminal, is_terminal, note, say

SHOW = """
from headway.cli.terminal import fetch_bar, note, say
with fetch_bar() as bar:
    for done in (0, 50, 100):
        bar("downloading it", done, 100)
    bar("unpacking", 3, None)
note("it failed", style="red")
say("x" * 300 + " [not] :markup:")
"""


def on_terminal(code: str, **environment: str) -> str:
    """What a program writes when stdout and stderr are a terminal."""
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while piece := os.read(primary, 65536):
                shown += piece
        except OSError:
            pass  # Linux says EIO when the last writer has gone
        assert process.wait() == 0
    os.close(primary)
    return shown.decode()


def test_a_pipe_gets_plain_lines_and_one_line_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with fetch_bar() as bar:
        for done in (0, 50, 100):
            bar("downloading it", done, 100)
        bar("unpacking", 3, None)
    note("it failed", style="red")
    say("x" * 300 + " [not] :markup:")
    out, err = capsys.readouterr()
    assert out == "x" * 300 + " [not] :markup:\n"
    assert err == "downloading it ...\nunpacking ...\nit failed\n"


def test_a_terminal_gets_a_bar_and_colours() -> None:
    shown = on_terminal(SHOW)
    assert "downloading it" in shown
    assert "100/100 bytes" in shown
    assert "\x1b[31mit failed" in shown


def test_no_color_is_honoured_on_a_terminal() -> None:
    assert "\x1b[31m" not in on_terminal(SHOW, NO_COLOR="1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J\x1b]0;title\x07gone", "[2J]0;titlegone"),
        ("\x00\x08\x7f\x9b31m\r", "31m"),
        ("héllo 模型 🚢", "héllo 模型 🚢"),
    ],
)
def test_a_models_control_characters_do_not_reach_a_terminal(text: str, shown: str) -> None:
    assert for_terminal(text) == shown


def test_what_is_no_terminal_is_not_taken_for_one() -> None:
    closed: Any = io.StringIO()
    closed.close()
    for stream in (None, io.StringIO(), closed):
        assert not is_terminal(stream)
