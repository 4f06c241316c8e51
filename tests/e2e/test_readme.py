"""What the README says to type does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import Server

README = (Path(__file__).parents[2] / "README.md").read_text()
PORT = "http://127.0.0.1:8000"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


CURL_LINES = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("curl")]


@pytest.mark.parametrize("line", CURL_LINES)
def test_a_curl_line_answers(server: Server, line: str) -> None:
    done = subprocess.run(
        ["bash", "-c", line.replace(PORT, server.url).replace("curl", "curl -sS --fail", 1)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert any(word in done.stdout for word in ('"content":', '"generated_texts":', 'data: {"token":')), done.stdout


@pytest.mark.parametrize("code", blocks("python client"))
def test_code_against_the_server_prints_an_answer(server: Server, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code.replace(PORT, server.url)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", blocks("python"))
def test_code_without_a_server_prints_its_answers(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip().splitlines()) >= 3


def test_the_readme_has_what_these_tests_look_for() -> None:
    assert (len(CURL_LINES), len(blocks("python client")), len(blocks("python"))) == (3, 1, 1)
