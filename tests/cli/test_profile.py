"""`headway profile`: the file, and the time by op."""

import json
from pathlib import Path

import pytest

import headway_wire as wire
from headway.cli.main import run
from headway.cli.profile import summary, write_trace
from headway.errors import InvalidConfig
from headway.worker.trace import make_trace

STEPS = [
    wire.ProfiledStep(
        begin_ns=at,
        end_ns=at + 4_000_000,
        num_sequences=2,
        num_tokens=tokens,
        spans=[wire.Span("Linear", "x", at, at + 3_000_000), wire.Span("Norm", "y", at + 3_000_000, at + 4_000_000)],
    )
    for at, tokens in ((0, 9), (5_000_000, 2))
]


def test_the_file_is_the_trace_and_the_summary_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = make_trace("m", STEPS)
    write_trace(trace, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == trace
    assert summary(trace) == [
        "2 steps, 11 tokens, 4.00 ms a step",
        " 75.0%     3.000 ms  Linear",
        " 25.0%     1.000 ms  Norm",
    ]
    told = capsys.readouterr()
    assert "2 steps, 11 tokens" in told.out
    assert "perfetto" in told.err


def test_no_step_is_told() -> None:
    assert summary(make_trace("m", [])) == ["no step was made: send requests while it waits"]


def test_a_file_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="--output"):
        write_trace(make_trace("m", []), tmp_path / "no" / "folder")


def test_nobody_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--url", "127.0.0.1:9"]) == 2
    assert "nobody answers" in capsys.readouterr().err
