"""Compares the tensors that a program wants with those that a checkpoint has."""

from collections.abc import Mapping
from typing import Protocol

from headway.errors import TensorMismatch

MAX_LISTED = 20


class HasShapes(Protocol):
    """As much of Weights as is looked at here."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is."""
        ...


def match_tensors(wanted: Mapping[str, tuple[int, ...]], weights: HasShapes, *, strict: bool) -> list[str]:
    """One line for each tensor that is missing, misshapen or unexpected, in this order and by name.

    With strict=True there must be none: TensorMismatch lists the first MAX_LISTED of each kind and counts the rest.
    With strict=False the same lines are returned for the caller to print: what matches is loaded, and a tensor that
    the program wants and that is missing or misshapen is zero (weights.ZeroFilledWeights), an unexpected one unused.
    """
    there = weights.shapes()
    missing = [f"missing: {name} {_text(wanted[name])}" for name in sorted(wanted.keys() - there.keys())]
    misshapen = [
        f"misshapen: {name} is {_text(there[name])}, should be {_text(wanted[name])}"
        for name in sorted(wanted.keys() & there.keys())
        if tuple(there[name]) != tuple(wanted[name])
    ]
    unexpected = [f"unexpected: {name} {_text(there[name])}" for name in sorted(there.keys() - wanted.keys())]
    lines = _bounded(missing) + _bounded(misshapen) + _bounded(unexpected)
    if lines and strict:
        counts = f"{len(missing)} missing, {len(misshapen)} misshapen, {len(unexpected)} unexpected"
        raise TensorMismatch(
            f"the checkpoint's tensors are not the architecture's ({counts}):\n  "
            + "\n  ".join(lines)
            + "\nload what matches with --non-strict"
        )
    return lines


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _bounded(lines: list[str]) -> list[str]:
    if len(lines) <= MAX_LISTED:
        return lines
    kind = lines[0].partition(":")[0]
    return [*lines[:MAX_LISTED], f"{kind}: {len(lines) - MAX_LISTED} more"]
