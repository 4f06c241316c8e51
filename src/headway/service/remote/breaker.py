"""The circuit breaker before another server: a pure function of what was asked of it and how it answered.

transition(state, event, now, config) -> (state, is_allowed). *closed*: it is asked. *open*: it failed too often and is
left alone. *half_open*: one request is on its way to see whether it is back. A *period* ends with each change of
status, so that an answer to what was asked before changes nothing.

Ask, in order of the cases:
    1. closed                                       allowed
    2. open, and open_s not over                    refused
    3. open, and open_s over                        half_open; allowed: this one is the probe
    4. half_open                                    refused: the probe has no answer yet
The outcome of what was allowed:
    5. of an earlier period                         nothing
    6. closed: a failure                            counted; with max_failures within window_s: open
    7. half_open: success closes, failure opens; a probe whose caller left opens too, and the next one may ask at once
Failures are those of the server (not reached, timed out, 502 to 504), not of a request (4xx, 500).
Source: M. Nygard, Release It!
"""

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

from headway.errors import UpstreamUnavailable
from headway.observe.clock import Clock

Status = Literal["closed", "half_open", "open"]
STATUS_NUMBERS: dict[Status, float] = {"closed": 0.0, "half_open": 1.0, "open": 2.0}
"""For the gauge."""


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When it opens, and for how long."""

    max_failures: int
    window_s: float
    open_s: float


class BreakerState(msgspec.Struct, frozen=True, kw_only=True):
    """One server's."""

    status: Status = "closed"
    period: int = 0
    failures: tuple[float, ...] = ()
    """When those of this period were, of the window at most; oldest first."""
    retry_at: float = 0.0
    """When open: when the probe may go."""
    num_openings: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request wants to go there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one ended that was allowed in `period`."""

    period: int
    how: Literal["success", "failure", "abandoned"]


def transition(
    state: BreakerState, event: Ask | Outcome, *, now: float, config: BreakerConfig
) -> tuple[BreakerState, bool]:
    """What follows, and whether an Ask is allowed; see the module's docstring."""
    if isinstance(event, Outcome):
        return _take(state, event, now, config), True
    if state.status == "closed":  # 1
        return state, True
    if state.status == "half_open" or now < state.retry_at:  # 4, 2
        return state, False
    return _enter(state, "half_open"), True  # 3


def _take(state: BreakerState, outcome: Outcome, now: float, config: BreakerConfig) -> BreakerState:
    if outcome.period != state.period or state.status == "open":  # 5
        return state
    if state.status == "half_open":  # 7
        if outcome.how == "success":
            return _enter(state, "closed")
        return _open(state, now + config.open_s if outcome.how == "failure" else now)
    if outcome.how != "failure":
        return state
    failures = (*(at for at in state.failures if now - at < config.window_s), now)  # 6
    if len(failures) >= config.max_failures:
        return _open(state, now + config.open_s)
    return replace(state, failures=failures)


def _enter(state: BreakerState, status: Status) -> BreakerState:
    return replace(state, status=status, period=state.period + 1, failures=())


def _open(state: BreakerState, retry_at: float) -> BreakerState:
    return replace(_enter(state, "open"), retry_at=retry_at, num_openings=state.num_openings + 1)


class CircuitBreaker:
    """The state of one server, and the clock."""

    def __init__(self, server: str, config: BreakerConfig, clock: Clock) -> None:
        self.state = BreakerState()
        self._server = server
        self._config = config
        self._clock = clock

    def enter(self) -> int:
        """The period of a request that may go; leave() must follow. Raises UpstreamUnavailable."""
        now = self._clock.now()
        self.state, is_allowed = transition(self.state, Ask(), now=now, config=self._config)
        if is_allowed:
            return self.state.period
        # A probe that is on its way tells soon: how soon, nobody knows.
        seconds = max(1.0, self.state.retry_at - now) if self.state.status == "open" else 1.0
        raise UpstreamUnavailable(
            f"{self._server} failed {self._config.max_failures} times within {self._config.window_s:g} s, or has not "
            f"come back since: it is asked again in {seconds:.0f} s",
            retry_after_s=seconds,
        )

    def leave(self, period: int, how: Literal["success", "failure", "abandoned"]) -> None:
        """Tells how it ended. A stream that broke off after its success is told a second time, as a failure."""
        self.state, _ = transition(self.state, Outcome(period, how), now=self._clock.now(), config=self._config)
