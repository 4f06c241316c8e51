"""Frameworks in environments of their own, behind the whole service: what their tests share."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.service.local import LocalService

ENVIRONMENTS = Path(__file__).parents[2] / ".venvs"
"""Made by `make test-peers`, from environments/*.txt."""


def python_of(environment: str) -> Path:
    """The interpreter of an environment."""
    path = ENVIRONMENTS / environment / "bin" / "python"
    assert path.exists(), f"{path} is made by `make test-peers`"
    return path


def ask(environment: str, program: str, *arguments: Any) -> Any:
    """What a program of this folder printed as its last line, in the environment of that name: JSON."""
    command = [str(python_of(environment)), str(Path(__file__).parent / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@asynccontextmanager
async def serving(environment: str, cache: Path, **model: Any) -> AsyncIterator[LocalService]:
    """A service of one model, whose process is of that environment."""
    config = ModelConfig(interpreter=str(python_of(environment)), **model)
    service = LocalService([config], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=cache))
    try:
        yield service
    finally:
        await service.aclose()
