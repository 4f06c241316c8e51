"""docs/tutorial.md, as it is written: each command works, and says what the page says it does."""

import doctest
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from e2e.test_examples import free_port

ROOT = Path(__file__).parents[2]
MARK = "=== block ==="
SERVER_LINES = ('{"event"', "Headway ", "Models are loaded")
BLOCK = re.compile(r"```bash\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def test_the_tutorial_runs_as_it_is_written(tmp_path: Path) -> None:
    port = str(free_port())
    blocks = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text().replace("8000", port))
    assert len(blocks) >= 6
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = "".join(f"{commands}\necho; echo '{MARK}'\n" for commands, _ in blocks)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "COLUMNS": "200",
    }
    command = ["bash", "-e", "-c", script]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said = _read_blocks(process.stdout, len(blocks))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
    for (commands, expected), found in zip(blocks, said, strict=True):
        if expected:
            is_same = doctest.OutputChecker().check_output(
                _flat(expected), _flat(found), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert is_same, f"{commands}\nsaid\n{found}\nand should say\n{expected}"


def _read_blocks(lines: Iterable[str] | None, count: int) -> list[str]:
    """What each block wrote, without the server's own lines. The server has the pipe too: the last mark is the end."""
    said = [""]
    for line in lines or ():
        if line.strip() == MARK:
            if len(said) == count:
                return said
            said.append("")
        elif not line.startswith(SERVER_LINES):
            said[-1] += line
    raise AssertionError(f"block {len(said)} ended with an error, and said: {said[-1]}")


def _flat(text: str) -> str:
    return text.strip() + "\n"
