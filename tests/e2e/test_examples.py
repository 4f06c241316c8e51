"""The examples run as they are written."""

import os
import subprocess
import sys
from pathlib import Path

import httpx2
from serving import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_offline_example_prints_an_answer_for_each_prompt() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "offline.py")], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert "The capital of France is -> " in lines[-2]
    assert "Paris" in lines[-2]
    assert "Tokyo" in lines[-1]


def test_the_application_can_be_mounted_in_ones_own(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "mounted_app:app", "--port", str(port), "--log-level", "warning"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=EXAMPLES, stdout=file, stderr=subprocess.STDOUT, env=dict(os.environ))
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: httpx2.get(url + "/llm/ready").status_code == 200, 180, log.read_text)
        assert httpx2.get(url + "/").json() == {"chat": "/llm/v1/chat/completions"}
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx2.post(url + "/llm/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] <= 4
    finally:
        process.terminate()
        code = process.wait(timeout=60)
    # uvicorn ends by the signal that it was given, once the application has shut down.
    assert code in (0, -15), log.read_text()
