"""What the pool is told (events) and what it decides (effects). residency.py says what follows from what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from headway.errors import HeadwayError

CPU: Final = "cpu"
"""The device whose memory is the machine's; the others are cuda:N."""
MODELS: Final = "models"
"""What --max-models bounds: each resident takes one. Counted beside the bytes of devices, as one more resource."""

Amounts = Mapping[str, int]
"""How much of each resource: bytes of a device, by its name, or MODELS."""
StopReason = Literal["room", "growth", "idle", "unload", "removed", "timeout"]
"""room: another model needs its memory; growth: residents were measured to take more than the limit."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a model is charged with before it was measured."""

    amounts: Amounts = field(default_factory=dict)
    """The least, in bytes by device."""
    device: str = CPU
    """Where its weights are."""
    more_bytes: int = 0
    """On that device, beside the least: what it makes good use of where it is free (keys and values)."""
    load_s: float = 1.0
    """How long a load takes."""
    num_places: int = 1
    """Of --max-models: 0 for what has no weights here (a model on another server, an ensemble)."""
    is_guess: bool = False
    """Nothing but the size of its files was looked at: what is measured counts, also where that is less."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the pool is told of a model as it is added."""

    need: Need | None = None
    """None: it is asked for (Estimate) before the first start."""
    is_pinned: bool = False
    """Never evicted, never idle."""
    idle_timeout_s: float | None = None
    """Unloaded so long after its last lease; 0: with its end. None: never for that."""


# Events


@dataclass(frozen=True, slots=True)
class AddModel:
    """There is this model from now on. One that is there: its facts are these from now on, its failures forgotten."""

    model: str
    facts: ModelFacts = ModelFacts()


@dataclass(frozen=True, slots=True)
class RemoveModel:
    """It goes once nobody waits for it and its leases have ended; Forget tells when. Who asks for it is denied."""

    model: str


@dataclass(frozen=True, slots=True)
class Want:
    """A request asks for a model."""

    ticket: int
    model: str
    is_use: bool = True
    """False: it is only to be loaded."""


@dataclass(frozen=True, slots=True)
class Unwant:
    """A request that waits has gone; unknown tickets are ignored."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The model is to be resident from now on, asked for or not; started again when it dies. One that was evicted,
    was idle or was unloaded comes back when it is asked for."""

    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    """The model is to leave memory as soon as its leases have ended. Who waits for it is served first if it loads."""

    model: str


@dataclass(frozen=True, slots=True)
class Estimated:
    """What an Estimate found."""

    model: str
    generation: int
    need: Need


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A start worked."""

    model: str
    generation: int
    load_s: float | None = None
    """How long it took, downloads left out; None: since the start."""
    need: Need | None = None
    """What it took, as its worker tells: for a start that nobody could say the need of. None: nor does the worker."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a resident takes, as the system tells it."""

    model: str
    generation: int
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker that was ready answers no more; WorkerEnded follows once it is gone."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """An estimate or a start failed, or a worker is gone; error None: as it was told to."""

    model: str
    generation: int
    error: HeadwayError | None = None


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A granted ticket needs its model no more; `has_served`: the worker did what was asked."""

    model: str
    generation: int
    has_served: bool = True
    is_use: bool = True
    """Of its ticket."""


@dataclass(frozen=True, slots=True)
class Used:
    """A lease was for so many requests more than the one it was granted for (service/standing_lease)."""

    model: str
    generation: int
    num_uses: int


@dataclass(frozen=True, slots=True)
class LoadTimeout:
    """The time for an estimate or a load is over."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """The time that a ticket may wait is over."""

    ticket: int


@dataclass(frozen=True, slots=True)
class IdleCheck:
    """A model may have been idle for long enough."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class RetryDue:
    """A model that failed may be started again."""

    model: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Nothing new from now on."""


TimerEvent = LoadTimeout | QueueTimeout | IdleCheck | RetryDue
WorkerEvent = Estimated | WorkerReady | Measured | WorkerLost | WorkerEnded
Event = AddModel | RemoveModel | Want | Unwant | Keep | Unload | WorkerEvent | LeaseEnded | Used | TimerEvent | Drain

# Effects


@dataclass(frozen=True, slots=True)
class Estimate:
    """Find the model's files and what it needs; answered by Estimated or WorkerEnded."""

    model: str
    generation: int


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker; answered by WorkerReady or WorkerEnded."""

    model: str
    generation: int
    more_bytes: int = 0
    """What it may take on its device beside the least that it needs; at most Need.more_bytes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End a worker that nothing uses, or that does not load in time (`error`); answered by WorkerEnded."""

    model: str
    generation: int
    error: HeadwayError | None = None
    reason: StopReason = "room"


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
class Forget:
    """A removed model is gone: the pool does not know it any more."""

    model: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Post `event` when the clock says `at`."""

    at: float
    event: TimerEvent


Effect = Estimate | Start | Stop | Grant | Deny | Forget | SetTimer
