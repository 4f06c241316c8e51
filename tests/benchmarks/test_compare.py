"""The comparison of engines: what it starts, how it goes on with what was saved, and what its tables say."""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SECONDS = {"headway": 1.0, "openvino": 3.0, "openvino-2048": 2.0, "headway-bf16": 4.0, "vllm": 8.0}


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/compare.py, whose neighbours are imported by their bare names; its code stays the same."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module, results = importlib.import_module("compare"), importlib.import_module("results")
    monkeypatch.setattr(results, "code_of", lambda engine: f"code of {engine}")
    return module


class Engines:
    """Stands for processes: every workload takes SECONDS of its engine, and what was started is written down."""

    def __init__(self, *, fail_at: int | None = None, short: str | None = None) -> None:
        self.started: list[tuple[str, str, int, list[str]]] = []
        self._left = fail_at
        self._short = short

    def __call__(self, engine: str, run: object, round_: int) -> Iterator[object]:
        names, workloads = run.workloads, sys.modules["workloads"]  # type: ignore[attr-defined]
        self.started.append((run.model.bf16, engine, round_, list(names)))  # type: ignore[attr-defined]
        for name in names:
            if self._left == 0:
                raise sys.modules["engines"].EngineFailed("out of memory")
            if self._left is not None:
                self._left -= 1
            made = workloads.WORKLOADS[name].num_requests * workloads.WORKLOADS[name].output_tokens
            made -= engine == self._short
            yield workloads.Measurement(engine, name, round_, SECONDS[engine], made, made + 100)


def read(compare: ModuleType, *words: str) -> argparse.Namespace:
    arguments: argparse.Namespace = compare.parse_arguments(["--dir", "nowhere", "--threads", "2", *words])
    return arguments


def run(compare: ModuleType, arguments: argparse.Namespace, engines: Engines) -> str:
    """What main() does without printing the tables' surroundings: they are returned."""
    contests = compare.choose_contests(arguments.contests, arguments.without)
    turns = list(compare.plan_turns(arguments, list(contests.values())))
    results = compare.open_results(arguments, turns, compare.engines_of(list(contests.values())))
    compare.measure(arguments, turns, results, engines)
    rates = compare.collect_rates(results.of(arguments.models[0], arguments.rounds))
    tables = [compare.make_rate_table(rates, SECONDS, arguments.workloads, arguments.rounds)]
    for name, contest in contests.items():
        verdicts = compare.judge(contest, rates, arguments.workloads, {}, may_be_share=False)
        tables.append(compare.make_verdict_table(name, contest, verdicts))
    return "\n".join(tables)


def test_engines_take_turns_and_each_round_begins_with_another(compare: ModuleType) -> None:
    engines = Engines()
    run(compare, read(compare, "--workloads", "single-128,eight-128", "--rounds", "2"), engines)
    both = ["single-128", "eight-128"]
    assert engines.started == [
        ("smollm2-135m-bf16", "headway", 0, both),
        ("smollm2-135m-bf16", "openvino", 0, both),
        ("smollm2-135m-bf16", "openvino-2048", 0, both),
        ("smollm2-135m-bf16", "openvino", 1, both),
        ("smollm2-135m-bf16", "openvino-2048", 1, both),
        ("smollm2-135m-bf16", "headway", 1, both),
    ]


def test_models_follow_each_other_and_workloads_may_be_taken_one_by_one(compare: ModuleType) -> None:
    engines = Engines()
    words = ["--models", "qwen2.5-0.5b-shape,smollm2-135m", "--contests", "vllm", "--rounds", "1", "--each-workload"]
    run(compare, read(compare, *words), engines)
    # vLLM has bars for two workloads alone, and nothing else is run for it.
    assert [(model, engine, workloads) for model, engine, _, workloads in engines.started] == [
        (f"{model}-bf16", engine, [workload])
        for model in ("qwen2.5-0.5b-shape", "smollm2-135m")
        for workload in ("single-128", "sixty-four-128")
        for engine in ("headway-bf16", "vllm")
    ]


def test_configurations_of_peers_may_be_left_out_but_not_all(compare: ModuleType) -> None:
    engines = Engines()
    run(compare, read(compare, "--workloads", "single-128", "--rounds", "1", "--without", "openvino"), engines)
    assert [engine for _, engine, _, _ in engines.started] == ["headway", "openvino-2048"]
    arguments = read(compare, "--without", "openvino,openvino-2048")
    with pytest.raises(SystemExit, match="leaves nothing of openvino: leave it out of --contests"):
        run(compare, arguments, engines)


def test_what_broke_off_goes_on_with_the_workload_that_was_not_measured(compare: ModuleType, tmp_path: Path) -> None:
    words = ["--workloads", "single-128,eight-128", "--rounds", "2", "--results", str(tmp_path / "deep" / "r.jsonl")]
    arguments = read(compare, *words)
    with pytest.raises(compare.EngineFailed):
        run(compare, arguments, Engines(fail_at=3))
    engines = Engines()
    table = run(compare, arguments, engines)
    assert [(name, round_, workloads) for _, name, round_, workloads in engines.started[:2]] == [
        ("openvino", 0, ["eight-128"]),
        ("openvino-2048", 0, ["single-128", "eight-128"]),
    ]
    assert len(engines.started) == 5
    assert table == run(compare, read(compare, *words[:4]), Engines())


def test_a_finished_comparison_is_begun_anew_and_the_old_one_kept(compare: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    arguments = read(compare, "--workloads", "single-128", "--rounds", "1", "--results", str(path))
    run(compare, arguments, Engines())
    before = path.read_text()
    engines = Engines()
    run(compare, arguments, engines)
    assert len(engines.started) == 3
    assert (tmp_path / "r.jsonl.old").read_text() == before
    # More rounds than are saved: only these are run.
    engines = Engines()
    run(compare, read(compare, "--workloads", "single-128", "--rounds", "2", "--results", str(path)), engines)
    assert [round_ for _, _, round_, _ in engines.started] == [1, 1, 1]


@pytest.mark.parametrize("change", [{"machine": "another"}, {"threads": 1}, {"code": "older"}])
def test_measurements_of_other_circumstances_are_not_counted(
    compare: ModuleType, tmp_path: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    arguments = read(compare, "--workloads", "single-128", "--rounds", "2", "--results", str(path))
    run(compare, arguments, Engines())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["circumstances"] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engines = Engines()
    run(compare, arguments, engines)
    assert [(name, round_) for _, name, round_, _ in engines.started] == [("headway", 0)]
    assert "1 measurements of other code, threads or another machine are not counted" in capsys.readouterr().out


def test_the_code_of_ours_is_the_package_and_of_a_peer_its_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    results = importlib.import_module("results")
    engines = ("headway", "openvino", "llamacpp-split")
    digests = {results.code_of(engine, tmp_path) for engine in engines}
    assert len(digests) == len(engines)
    (tmp_path / "rooms").mkdir()
    (tmp_path / "rooms" / "_native.so").write_bytes(b"\x7fELF")
    assert {engine for engine in engines if results.code_of(engine, tmp_path) not in digests} == {"headway"}


def test_a_line_whose_writing_broke_off_is_dropped_and_another_is_refused(compare: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    arguments = read(compare, "--workloads", "single-128", "--rounds", "2", "--results", str(path))
    run(compare, arguments, Engines())
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]) + whole[-1][:30])
    engines = Engines()
    run(compare, arguments, engines)
    assert [(name, round_) for _, name, round_, _ in engines.started] == [("headway", 1)]
    assert sorted(path.read_text().splitlines(keepends=True)) == sorted(whole)
    path.write_text(whole[0] + "{}\n" + whole[1])
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2 is no measurement .*mend or remove it"):
        run(compare, arguments, Engines())


def test_no_engine_is_started_after_the_time_that_was_given(compare: ModuleType) -> None:
    engines = Engines()
    run(compare, read(compare, "--minutes", "0"), engines)
    assert engines.started == []


def test_the_ratio_is_to_the_best_configuration_over_the_rounds_that_both_have(compare: ModuleType) -> None:
    made = [
        compare.Measurement(engine, "single-128", round_, 128 / rate, 128, 160)
        for engine, rates in {
            "headway": (90, 300, 330),
            "openvino": (50, 100, 110),
            "openvino-2048": (60, 40),
        }.items()
        for round_, rate in enumerate(rates)
    ]
    rates = compare.collect_rates(made)
    bounds = {"q4": {"single-128": 600.0}}
    (verdict,) = compare.judge(compare.CONTESTS["openvino"], rates, ["single-128", "eight-128"], bounds, may_be_share=0)
    # Against openvino 300 to 100 over three rounds; against the other (90 + 300) / 2 to (60 + 40) / 2 over two.
    assert verdict.as_row() == "| single-128 | openvino | **3.00** | 1.5 | 2.2 | 50% | 3 | goal |"
    table = compare.make_rate_table(rates, ["headway", "openvino-2048"], ["single-128", "eight-128"], 3)
    assert table.splitlines()[2:] == [
        "| headway | 300.0 (3.67) | - |",
        "| openvino-2048 | 50.0 (1.50, 2 of 3) | - |",
    ]


@pytest.mark.parametrize(("share", "is_enough"), [(0.76, True), (0.74, False)])
def test_a_share_of_the_roofline_is_enough_only_where_it_may_be(
    compare: ModuleType, share: float, is_enough: bool
) -> None:
    made = [compare.Measurement(name, "single-128", 0, 1.0, 128, 160) for name in ("headway", "openvino")]
    rates, bounds = compare.collect_rates(made), {"q4": {"single-128": 128 / share}}
    for may_be_share in (True, False):
        (verdict,) = compare.judge(
            compare.CONTESTS["openvino"], rates, ["single-128"], bounds, may_be_share=may_be_share
        )
        assert verdict.ratio == 1.0
        assert verdict.holds == (may_be_share and is_enough)
        assert verdict.state == ("holds" if may_be_share and is_enough else "**BELOW**")


@pytest.mark.parametrize("short", ["headway", "openvino-2048"])
def test_another_number_of_tokens_is_said_in_the_row_and_holds_nothing(compare: ModuleType, short: str) -> None:
    table = run(compare, read(compare, "--workloads", "single-128", "--rounds", "1"), Engines(short=short))
    *_, row = table.splitlines()
    assert row.endswith(f"| 1 | **{short} made 127 tokens of 128** |")
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {short} |")]
    assert "made 127 tokens of 128" in line


def test_a_script_that_fails_or_prints_something_else_is_told_with_what_it_wrote(compare: ModuleType) -> None:
    engines = sys.modules["engines"]
    line = json.dumps(
        {"engine": "x", "workload": "single-128", "round": 0, "seconds": 1, "output_tokens": 128, "total_tokens": 160}
    )
    code = f"print({line!r}, flush=True)\n"
    command = [sys.executable, "-c", code + "raise SystemExit('no memory')"]
    stream = engines.stream_script("one", command, 1, is_ours=False)
    assert next(stream).engine == "one"
    with pytest.raises(compare.EngineFailed, match="one ended with status 1:\nno memory"):
        next(stream)
    with pytest.raises(compare.EngineFailed, match=r"one printed what is no measurement .*\nhello"):
        list(engines.stream_script("one", [sys.executable, "-c", "print('hello')"], 1, is_ours=False))
    code = code.replace('"output_tokens": 128', '"output_tokens": 127')
    with pytest.raises(compare.EngineFailed, match="one made 127 tokens of 128 on single-128"):
        engines.run_script("one", [sys.executable, "-c", code], 1, is_ours=False)


def test_an_unknown_name_is_refused_with_those_there_are(
    compare: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(compare, "--contests", "openvino,nobody")
    assert "unknown: nobody; there are openvino, vllm" in capsys.readouterr().err
