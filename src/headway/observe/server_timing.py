"""What a request waited for before its model could take it: noted where it waits, told in its answer's header.

The door makes a RequestTiming for each request and puts it into TIMING; whatever runs for the request, in tasks of its
own too, notes in the one that it finds there. The header is Server-Timing (W3C): names, and milliseconds.
"""

from contextvars import ContextVar


class RequestTiming:
    """Of one request."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, float] = {}

    def note(self, name: str, seconds: float) -> None:
        """Names are tokens: letters, digits and hyphens. The longest of those with one name counts."""
        self._entries[name] = max(seconds, self._entries.get(name, 0.0))

    def header(self) -> str:
        """ "" where nothing was noted: wait;dur=812.4, load-read;dur=640.0"""
        return ", ".join(f"{name};dur={seconds * 1e3:.1f}" for name, seconds in self._entries.items())


TIMING: ContextVar[RequestTiming | None] = ContextVar("headway_request_timing", default=None)
