"""How far a download or a conversion is: called with it, often, from the thread that does the work."""

from typing import Protocol


class Progress(Protocol):
    """Must return quickly and not raise; phases come one after the other."""

    def __call__(self, phase: str, done_bytes: int, total_bytes: int | None) -> None:
        """`done_bytes` of `total_bytes` (None: not known) of the phase named by a few words for a person."""
        ...


def silent(phase: str, done_bytes: int, total_bytes: int | None) -> None:
    """The Progress of a caller who does not look."""
