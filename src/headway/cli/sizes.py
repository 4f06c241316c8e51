"""Numbers as people write them: 4k tokens, 2GiB, 30% of the memory, 90s. Each raises ValueError that says what fits."""

import math
import re
from collections.abc import Mapping
from typing import TypeVar

Unit = TypeVar("Unit", int, float)

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z%]*)\s*")
_COUNT_UNITS = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kmgt", 1)},
    **{unit: 1024**power for power, unit in enumerate("KMGT", 1)},
}
_BYTE_UNITS = {
    **_COUNT_UNITS,
    "B": 1,
    "kB": 1000,
    **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)},
    **{f"{unit}iB": 1024**power for power, unit in enumerate("KMGT", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)},
}
_SECOND_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_MILLISECOND_UNITS = {unit: 1.0 if unit == "" else 1000.0 * seconds for unit, seconds in _SECOND_UNITS.items()}
_SMALLEST_MEMORY = 1 << 20


def parse_count(value: object) -> int:
    """A whole number; k, m, g are powers of 1000 and K, M, G powers of 1024, as vLLM has them."""
    return _whole(value, _COUNT_UNITS, "a whole number such as 4096, 4k (4000) or 4K (4096)")


def parse_bytes(value: object) -> int:
    """Bytes: plain, or with kB, MB, GB (powers of 1000), KiB, MiB, GiB, K, M, G (powers of 1024)."""
    return _whole(value, _BYTE_UNITS, "bytes such as 1073741824, 512MiB or 2GiB")


def parse_memory(value: object) -> int | float:
    """Bytes (an int), or a fraction of the memory that is available (a float over 0, up to 1): 2GiB, 0.3, 30%."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*%\s*", value):
        return _fraction(float(value.strip().rstrip("%")) / 100)
    if isinstance(value, str) and re.fullmatch(r"\s*\d*\.\d+\s*", value):
        return _fraction(float(value))
    if isinstance(value, float):
        return _fraction(value)
    size = parse_bytes(value)
    if size < _SMALLEST_MEMORY:
        raise ValueError(f"{size} bytes hold no cache: give at least 1MiB, or a fraction of the memory such as 0.3")
    return size


def parse_seconds(value: object) -> float:
    """Seconds, at least 0: 90, 1.5, 90s, 2m, 1h."""
    wanted = "seconds such as 90, 1.5, 90s or 2m"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"it must be {wanted}")
    if isinstance(value, str):
        number, unit = _split(value, _SECOND_UNITS, wanted)
        return float(number) * unit
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"it must be {wanted}")
    return float(value)


def parse_milliseconds(value: object) -> float:
    """Milliseconds, at least 0: 5, 2.5, 5ms, 1s, 5m."""
    wanted = "milliseconds such as 5 or 2.5, or 5ms, 1s, 5m"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"it must be {wanted}")
    if isinstance(value, str):
        number, unit = _split(value, _MILLISECOND_UNITS, wanted)
        return float(number) * unit
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"it must be {wanted}")
    return float(value)


def format_bytes(size: float) -> str:
    """For people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _fraction(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError("a fraction of the memory is over 0 and at most 1; bytes are whole, such as 2GiB")
    return value


def _whole(value: object, units: Mapping[str, int], wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"it must be {wanted}")
    if isinstance(value, str):
        number, unit = _split(value, units, wanted)
        # Exact: 25.6k is 25600, which 25.6 * 1000 in floats is only by luck.
        whole, _, decimals = number.partition(".")
        scaled, rest = divmod(int(whole + decimals) * unit, int(10 ** len(decimals)))
        if rest:
            raise ValueError(f"it must be {wanted}")
        return scaled
    if value < 0 or value != value or not float(value).is_integer():
        raise ValueError(f"it must be {wanted}")
    return int(value)


def _split(value: str, units: Mapping[str, Unit], wanted: str) -> tuple[str, Unit]:
    match = _NUMBER.fullmatch(value)
    if match is None or match[2] not in units:
        raise ValueError(f"it must be {wanted}")
    return match[1], units[match[2]]
