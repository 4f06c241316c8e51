"""Meeting: where the ranks of a group find each other, and how long they wait for one another. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path

COLLECTIVE_TIMEOUT_S = 60.0
"""How long a rank waits for the others within a step, and to join them: one that is slower is lost."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A rank's place in a group."""

    path: Path
    """A file that does not exist yet, in a folder of this user alone: the ranks leave their addresses in it."""
    rank: int
    size: int
    timeout_s: float = COLLECTIVE_TIMEOUT_S
