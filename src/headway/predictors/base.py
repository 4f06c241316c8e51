"""What a worker process runs. worker/serve finds it by its dotted name and is its only caller, from one thread."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import headway_wire as wire
from headway.errors import InvariantBroken

Report = Callable[[wire.Loading], None]
"""Called during a load, at each phase and at most ten times a second."""


class Predictor(Protocol):
    """A loaded model as a state machine: messages in, messages out. Raises only what ends the process."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """Loads; blocks. Raises HeadwayError."""
        ...

    def handle(self, message: wire.Submit | wire.Abort | wire.Hold | wire.Infer) -> Iterable[wire.Up]:
        """Takes one message; returns what to send back at once (Accepted, Refused, Outputs)."""
        ...

    def has_work(self) -> bool:
        """Whether step() would do something."""
        ...

    def step(self) -> Iterable[wire.Up]:
        """Does one step; returns its messages (a Step first)."""
        ...

    def stats(self) -> wire.Stats:
        """Counters and gauges now."""
        ...

    def close(self) -> None:
        """Frees what it holds; called once, last."""
        ...


@runtime_checkable
class ProfiledPredictor(Protocol):
    """What a Predictor has too where its steps can be recorded."""

    def profile(self, num_steps: int) -> None:
        """Records the next steps; 0: no more."""
        ...

    def take_profile(self) -> list[wire.ProfiledStep] | None:
        """What was recorded since the last call; None: nothing is asked for, or all was taken."""
        ...


@runtime_checkable
class TimedPredictor(Protocol):
    """What a Predictor has too where it may get work without a message: by the clock."""

    def wait_s(self) -> float | None:
        """Seconds after which has_work() may be True without a message; None: only a message changes it."""
        ...


@runtime_checkable
class PreparingPredictor(Protocol):
    """What a Predictor has too where requests may need what can be made with the load."""

    def prepare(self) -> None:
        """Called before load() in a process that serves many: what the first such request would make is made then."""
        ...


@runtime_checkable
class TextPredictor(Protocol):
    """What a Predictor has too where it makes ids of texts itself; it tells `takes_texts` in Ready.info."""

    def submit_text(self, message: wire.SubmitText) -> Iterable[wire.Up]:
        """Takes a text; returns what to send back at once."""
        ...


class LoadedEngine(Protocol):
    """What an engine has that a predictor may stand before."""

    def has_work(self) -> bool:
        """Whether a step would do something."""
        ...

    def stats(self) -> wire.Stats:
        """Counters and gauges now."""
        ...


E = TypeVar("E", bound=LoadedEngine)


class EnginePredictor(Generic[E]):
    """What predictors before an engine share: there is none before load() and after close()."""

    def __init__(self) -> None:
        self._engine: E | None = None

    def has_work(self) -> bool:
        """Whether step() would do something."""
        return self._engine is not None and self._engine.has_work()

    def stats(self) -> wire.Stats:
        """The engine's counters and gauges."""
        return self._engine.stats() if self._engine is not None else wire.Stats()

    def close(self) -> None:
        """Lets go of weights and caches."""
        self._engine = None

    @property
    def _loaded(self) -> E:
        if self._engine is None:
            raise InvariantBroken("the predictor is used before load() or after close()")
        return self._engine
