"""What an entry may hold: what each database takes and JSON tells, and nothing that only one of them has."""

import datetime
import math
from typing import Any

import pytest

from headway.config import Preset
from headway.core.catalog import MAX_DEPTH, CatalogEntry
from headway.errors import InvalidRequest


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (datetime.date(2024, 1, 1), "datetime.date"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (2**63, "9223372036854775808"),
        ("\ud800", "ud800"),
        ("a\0b", "x00"),
        ({1: 2}, "the key '1'"),
        ({"\ud800": 2}, "ud800"),
        ({"a", "b"}, "{'"),
        (b"x", "b'x'"),
        (nested(MAX_DEPTH), f"over {MAX_DEPTH}"),
        (nested(100_000), f"over {MAX_DEPTH}"),
    ],
)
def test_what_json_does_not_tell_is_no_option(value: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match="options") as refused:
        CatalogEntry(id="m", framework="python", options={"x": value})
    assert named in refused.value.message
    with pytest.raises(InvalidRequest, match="presets"):
        CatalogEntry(id="m", presets=(Preset(name="p", template_kwargs={"x": value}),))


def test_what_json_tells_is_an_option() -> None:
    options = {"a": [1, 2.5, None, True, "日本 🎈", {"b": {}}], "deep": nested(MAX_DEPTH - 1), "large": 2**63 - 1}
    assert CatalogEntry(id="m", framework="python", options=options).options == options


@pytest.mark.parametrize("field", ["name", "description", "source", "interpreter", "device"])
@pytest.mark.parametrize("value", ["a\0b", "\ud800", "x" * 4001])
def test_a_text_that_a_database_might_not_take_is_refused(field: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field} has"):
        CatalogEntry(id="m", **{field: value})


def test_a_device_fits_its_column() -> None:
    with pytest.raises(InvalidRequest, match="device has 65 characters; it must be at most 64"):
        CatalogEntry(id="m", device="x" * 65)


@pytest.mark.parametrize("field", ["expected_bytes", "measured_bytes", "expected_load_s", "idle_timeout_s"])
@pytest.mark.parametrize("value", [-1, 2**63, math.nan, math.inf])
def test_a_number_that_no_column_holds_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field} is"):
        CatalogEntry(id="m", **{field: value})  # type: ignore[arg-type]
