"""What the pool is told (events) and what it decides (effects). residency.py says what follows from what."""

from dataclasses import dataclass

from headway.errors import HeadwayError

# Events


@dataclass(frozen=True, slots=True)
class Want:
    """A request asks for a model."""

    ticket: int
    model: str


@dataclass(frozen=True, slots=True)
class Unwant:
    """A request that waits has gone; unknown tickets are ignored."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The model is to be resident from now on, asked for or not; started again when it dies."""

    model: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A start worked."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker that was ready answers no more; WorkerEnded follows once it is gone."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A start failed, or a worker is gone; error None: as it was told to."""

    model: str
    generation: int
    error: HeadwayError | None = None


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A granted ticket needs its model no more; `has_served`: the worker did what was asked."""

    model: str
    generation: int
    has_served: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer that SetTimer asked for."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Nothing new from now on."""


Event = Want | Unwant | Keep | WorkerReady | WorkerLost | WorkerEnded | LeaseEnded | Tick | Drain

# Effects


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker; answered by WorkerReady or WorkerEnded."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End a worker that nothing uses, or that does not load in time (`error`); answered by WorkerEnded."""

    model: str
    generation: int
    error: HeadwayError | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """The ticket has a lease on the worker of that generation; LeaseEnded must follow."""

    ticket: int
    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Deny:
    """The ticket gets nothing."""

    ticket: int
    error: HeadwayError


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with a Tick when the clock says `at`."""

    model: str
    generation: int
    at: float


Effect = Start | Stop | Grant | Deny | SetTimer
