import math
from collections.abc import Callable

import pytest

from headway.cli.sizes import (
    format_bytes,
    parse_bytes,
    parse_count,
    parse_memory,
    parse_milliseconds,
    parse_seconds,
)

GOOD = [
    # k is 1000 and K is 1024, as in vLLM's human-readable integers.
    (parse_count, "4096", 4096),
    (parse_count, "1k", 1000),
    (parse_count, "1K", 1024),
    (parse_count, "25.6k", 25600),
    (parse_count, "2m", 2_000_000),
    (parse_count, "2M", 2 * 1024 * 1024),
    (parse_count, 7, 7),
    (parse_count, 7.0, 7),
    (parse_bytes, "16MiB", 16 * 1024 * 1024),
    (parse_bytes, "16 MB", 16_000_000),
    (parse_bytes, "1.5GiB", 1_610_612_736),
    (parse_bytes, "3Gi", 3 * 1024**3),
    (parse_bytes, "512", 512),
    (parse_memory, "2GiB", 2 * 1024**3),
    (parse_memory, "0.3", 0.3),
    (parse_memory, ".5", 0.5),
    (parse_memory, "30%", 0.3),
    (parse_memory, "1.0", 1.0),
    (parse_memory, 0.25, 0.25),
    (parse_memory, 2**30, 2**30),
    (parse_seconds, "90", 90.0),
    (parse_seconds, "1.5s", 1.5),
    (parse_seconds, "2m", 120.0),
    (parse_seconds, "1h", 3600.0),
    (parse_seconds, "500ms", 0.5),
    (parse_seconds, 0, 0.0),
    (parse_milliseconds, "50", 50.0),
    (parse_milliseconds, "2.5ms", 2.5),
    (parse_milliseconds, "5m", 300_000.0),
    (parse_milliseconds, 7, 7.0),
]
BAD = [
    *((parse_count, value) for value in ("", "x", "-1", "1.5", "1kk", "1 2", "0x10", True, None, [1], 1.5, math.inf)),
    (parse_count, "0.0001k"),
    (parse_count, math.nan),
    *((parse_milliseconds, value) for value in ("", "soon", "-1", True, None, -1, math.inf)),
    *((parse_bytes, value) for value in ("16Mib", "-1", "1.0001kB5", False)),
    (parse_memory, "0.0"),
    (parse_memory, "1.5"),
    (parse_memory, "200%"),
    (parse_memory, 0.0),
    (parse_memory, 1),
    (parse_memory, "1"),
    (parse_memory, math.nan),
    *((parse_seconds, value) for value in ("-1", "soon", "1d", True, -1.0, math.inf, math.nan)),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_a_size_as_people_write_it_is_this_number(
    parse: Callable[[object], object], text: object, value: object
) -> None:
    parsed = parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(("parse", "text"), BAD)
def test_what_is_no_size_is_refused_and_told_what_would_be(parse: Callable[[object], object], text: object) -> None:
    with pytest.raises(ValueError, match=r"such as|fraction"):
        parse(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150 * 1024, "150 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**41, "2048 GiB"),
    ],
)
def test_bytes_are_written_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text
