"""What is begun before anything is imported: for the commands that run a model, and for no other."""

import gc
from collections.abc import Iterator

import pytest

from headway.cli import startup
from headway.worker import spawn


@pytest.fixture(autouse=True)
def collector_restored() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(spawn, "spawn_ahead", lambda *modules: calls.append(modules))
    return calls


@pytest.mark.parametrize("line", ["serve demo", "chat", "generate --max-tokens=8 hello", "serve demo --port 1"])
def test_a_command_that_runs_a_model_starts_its_process_at_once(line: str, started: list[tuple[str, ...]]) -> None:
    startup.begin(line.split())
    assert started == [("headway.predictors.headway",)]
    assert not gc.isenabled()
    startup.end()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] > 10_000


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--help",
        "doctor",
        "pull demo",
        "serve --help",
        "chat --url http://127.0.0.1:1",
        "generate --url=http://127.0.0.1:1 x",
        "serve x --predictor a:B",
    ],
)
def test_any_other_starts_nothing(line: str, started: list[tuple[str, ...]]) -> None:
    startup.begin(line.split())
    assert started == []
    assert gc.isenabled()
    startup.end()
    assert gc.get_freeze_count() == 0
