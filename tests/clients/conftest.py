"""Clients as their users run them: a program each, in an environment of its own, against a server of this process that
plays a script, or against `headway serve` with the demo model."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import Server, start_server, stop_server
from tests.server.conftest import listening

from headway.config import ServerConfig
from headway.server.app import make_app
from headway.testing.script import CONTROL_TOKENS, Script
from headway.testing.scripted_service import ScriptedService

HERE = Path(__file__).parent
ENVIRONMENTS = Path(__file__).parents[2] / ".venvs"
"""Made by `make test-clients`, from environments/*.txt."""
PROGRAM_DEADLINE_S = 120

ON_ITS_OWN = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Nobody is told that a test has run, and nothing is fetched."""

Asked = Callable[..., Awaitable[str]]


@pytest.fixture
def ask(tmp_path: Path) -> Asked:
    """ask(environment, program, *arguments): what a program printed, in the environment of that name; dev: this one."""

    async def run(environment: str, program: Path, *arguments: str) -> str:
        python = Path(sys.executable) if environment == "dev" else ENVIRONMENTS / environment / "bin" / "python"
        assert python.exists(), f"{python} is made by `make test-clients`"
        process = await asyncio.create_subprocess_exec(
            python,
            program,
            *arguments,
            cwd=tmp_path,
            env=os.environ | ON_ITS_OWN | {"HOME": str(tmp_path), "NO_COLOR": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), PROGRAM_DEADLINE_S)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{out.decode()[-4000:]}\n{err.decode()[-4000:]}"
        return out.decode().strip()

    return run


@dataclass(frozen=True)
class Scripted:
    """A server that plays a script."""

    url: str
    service: ScriptedService

    def prompts(self) -> list[str]:
        """What reached the model, control tokens included."""
        [name] = self.service.loader.workers
        return [shown(submit.prompt_token_ids) for submit in self.service.predictor(name).submits]


def shown(ids: list[int]) -> str:
    """The text of a script's tokens."""
    pieces = [bytes((each,)) if each < 256 else CONTROL_TOKENS[each - 256].encode() for each in ids]
    return b"".join(pieces).decode()


@asynccontextmanager
async def _serving(script: Script, name: str = "scripted") -> AsyncIterator[Scripted]:
    service = ScriptedService(models={name: script})
    async with listening(make_app(service, ServerConfig(port=0))) as server:
        await service.until_ready()
        yield Scripted(server.url + "/v1", service)
        await service.until_idle()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """serving(script, name="scripted"): a context manager, the script as a model of that name."""
    return _serving


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`headway serve demo`; after all it ends well."""
    server = start_server(tmp_path_factory.mktemp("serve"), "--max-num-seqs", "4")
    yield server
    server.check_idle()
    assert stop_server(server) == 0, server.describe()
