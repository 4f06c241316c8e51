"""Each case of tests/cases/*.jsonl is shown by a test that is marked with its id, or waits for its feature.

agent.jsonl has those of an agent's cases that a server has a part in.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [line for path in sorted((TESTS / "cases").glob("*.jsonl")) for line in path.read_text().splitlines()]
CASES = {case["id"]: case for case in map(json.loads, LINES)}

AREAS_THAT_WAIT = {
    "lora/cluster": "there are no adapters, and no router of several servers, yet",
    "metering": "there is no ledger of requests yet",
}
"""All of an area; where some of it is there already, its tests are marked all the same."""

IDS_THAT_WAIT: dict[str, str] = {}
"""Of areas that are there."""


@cache
def marked_ids() -> frozenset[str]:
    """What tests say that they show."""
    marks = re.compile(r"pytest\.mark\.case\(([^)]*)\)")
    texts = (path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    found = (mark for text in texts for mark in marks.findall(text))
    return frozenset(case_id for mark in found for case_id in re.findall(r'"([^"]+)"', mark))


@pytest.mark.parametrize("case_id", CASES)
def test_a_case_is_shown_unless_its_feature_is_not_there(case_id: str) -> None:
    waits = AREAS_THAT_WAIT.get(CASES[case_id]["area"]) or IDS_THAT_WAIT.get(case_id)
    assert waits or case_id in marked_ids(), f"no test is marked @pytest.mark.case({case_id!r})"


def test_marks_name_cases_that_there_are() -> None:
    assert marked_ids() <= set(CASES)


def test_nothing_waits_that_is_shown_or_is_no_case() -> None:
    assert not marked_ids() & set(IDS_THAT_WAIT)
    assert set(IDS_THAT_WAIT) <= set(CASES)
    assert set(AREAS_THAT_WAIT) <= {case["area"] for case in CASES.values()}
