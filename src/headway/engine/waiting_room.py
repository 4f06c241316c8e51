"""WaitingRoom: Submits whose grammars are being compiled. They are answered once that is done, or takes too long."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import headway_wire as wire
from headway.engine.compiled_grammar import CompiledGrammar
from headway.errors import HeadwayError

POLL_S = 0.002
"""How often a loop without other work looks whether one is done."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One of them."""

    submit: wire.Submit
    max_total_tokens: int
    grammar: CompiledGrammar
    since_s: float
    """When its Submit came."""


class WaitingRoom:
    """Owned by the engine's loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._guests: dict[str, Guest] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._guests

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._guests))

    def add(self, guest: Guest) -> None:
        """It waits from now on."""
        self._guests[guest.submit.request_id] = guest

    def remove(self, request_id: str) -> bool:
        """It waits no more. False: it did not."""
        return self._guests.pop(request_id, None) is not None

    def has_news(self) -> bool:
        """Whether take() would return somebody."""
        return any(self._is_settled(guest) for guest in self._guests.values())

    def take(self) -> list[tuple[Guest, HeadwayError | None]]:
        """Those whose grammars are compiled, in the order in which they came, or why theirs cannot be had."""
        settled = [guest for guest in self._guests.values() if self._is_settled(guest)]
        for guest in settled:
            del self._guests[guest.submit.request_id]
        return [(guest, self._refusal(guest)) for guest in settled]

    def _is_settled(self, guest: Guest) -> bool:
        return guest.grammar.is_done or self._refusal(guest) is not None

    def _refusal(self, guest: Guest) -> HeadwayError | None:
        return guest.grammar.refusal(self._now() - guest.since_s)
