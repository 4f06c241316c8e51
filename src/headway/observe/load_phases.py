"""How a load's phases are told to people: on the terminal and in the log."""

from collections.abc import Iterable


def describe_load(phases: Iterable[tuple[str, float]]) -> str:
    """loaded in 2.1 s: read 0.3 s, build 1.5 s, warm 0.3 s."""
    told = list(phases)
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in told)
    return f"loaded in {sum(seconds for _, seconds in told):.1f} s" + (f": {parts}" if parts else "")
