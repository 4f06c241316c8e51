"""The code of docs/agents.md runs as it is written, but for the address, and prints the model's answer."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import Asked

from headway.testing.script import Script, say

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
ADDRESS = "http://127.0.0.1:8000/v1"
BLOCKS = re.findall(r"^## (.*?)$.*?```python (\w+)\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
SCRIPT = Script(reply=say("The capital is Paris."), max_model_len=100_000)


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        pytest.param(environment, code, id=title, marks=[] if environment == "dev" else [pytest.mark.clients])
        for title, environment, code in BLOCKS
    ],
)
async def test_an_example_prints_the_answer(
    serving: Callable[..., Any], ask: Asked, tmp_path: Path, environment: str, code: str
) -> None:
    assert ADDRESS in code
    program = tmp_path / "example.py"
    async with serving(SCRIPT, name="demo") as server:
        program.write_text(code.replace(ADDRESS, server.url))
        told = await ask(environment, program)
    assert "The capital is Paris." in told


def test_the_page_has_an_example_for_each_environment() -> None:
    made = {path.stem for path in (Path(__file__).parent / "environments").glob("*.txt")}
    assert {environment for _, environment, _ in BLOCKS} == made | {"dev"}
    assert len(BLOCKS) == PAGE.count("```python")
