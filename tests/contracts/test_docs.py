"""The docs name only what there is: flags of `headway serve`, families of /metrics with their kinds and labels."""

import re
from pathlib import Path

import pytest

from headway.cli.refused import advice_on
from headway.cli.serve import make
from headway.core.output import Usage
from headway.observe.engine_families import ModelStats
from headway.observe.metrics import Metrics, RequestMeter

DOCS = Path(__file__).parents[2] / "docs"


def rows(name: str) -> list[list[str]]:
    """The cells of each row of the page's tables, heads left out."""
    lines = [line for line in (DOCS / name).read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
    return [row for row in cells if row[0] not in ("to", "family")]


def flags_of_serve() -> set[str]:
    return {flag for each in make().params for flag in (*each.opts, *each.secondary_opts)}


def flags_in(cell: str) -> list[str]:
    return re.findall(r"--[a-z][a-z0-9-]*", cell)


def test_each_flag_beside_those_of_others_is_one_of_serve() -> None:
    table = rows("coming-from.md")
    named = {flag for row in table for flag in flags_in(row[1])}
    assert len(named) > 25
    assert named <= flags_of_serve()
    assert all(len(row) == 5 for row in table)


def test_the_prose_names_flags_of_serve_too() -> None:
    prose = [line for line in (DOCS / "coming-from.md").read_text().splitlines() if not line.startswith("|")]
    assert {flag for line in prose for flag in flags_in(line)} <= flags_of_serve()


def test_the_flags_of_vllm_in_the_table_are_taken_or_refused_by_name() -> None:
    ours = flags_of_serve()
    theirs = {flag for row in rows("coming-from.md") for flag in flags_in(row[2])}
    assert {flag for flag in theirs if flag not in ours and advice_on(flag.removeprefix("--")) is None} == set()


def test_each_family_of_the_page_is_there_with_its_kind_and_labels_and_none_is_missing() -> None:
    told = {row[0].strip("`"): (row[1], set(filter(None, row[2].split(", ")))) for row in rows("metrics.md")}
    assert told == families()


def families() -> dict[str, tuple[str, set[str]]]:
    """Sample names without their suffixes, as Prometheus shows them, with kinds and labels."""
    numbers = {"block_size": 16.0, "num_blocks": 4.0, "stops_idle_total": 1.0, "load_read_seconds_total": 1.0}
    numbers |= {"infer_instances": 1.0, "upstream_state": 0.0}
    pool = {"limit_bytes_cpu": 2.0, "charged_bytes_cpu": 1.0, "over_limit_bytes_cpu": 0.0}
    stats: ModelStats = {"models": {"m": numbers}, "pool": {"pool": pool}}
    metrics = Metrics(lambda: stats)
    meter = RequestMeter(metrics, "m", 1, 0.0)
    meter.on_tokens(0, 1, 1.0)
    meter.on_tokens(0, 1, 2.0)
    meter.end(Usage(1, 2, 0), "stop", 2.0)
    metrics.encoders.end("m", "score", "success", num_tokens=1, seconds=1.0)
    metrics.infer.end("m", "success", 1.0)
    metrics.grpc_requests.labels("ModelInfer", "OK").inc()
    metrics.native_requests.labels("/predict").inc()
    metrics.rejections.labels("queue_full").inc()
    metrics.http_requests.labels("/", "GET", "200").inc()
    metrics.http_duration.labels("/").observe(1.0)
    found = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    return found


@pytest.mark.parametrize("page", ["metrics.md", "coming-from.md", "agents.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([a-z][^):]*)\)", (DOCS / page).read_text()):
        assert (DOCS / target).exists(), target
