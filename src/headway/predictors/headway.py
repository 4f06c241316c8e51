"""HeadwayPredictor: Headway's own engine as a predictor. Only translates: the work is the engine's."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.errors import InvalidConfig, UnsupportedFeature
from headway.predictors.base import EnginePredictor, Report


class HeadwayPredictor(EnginePredictor[Engine]):
    """A large language model on Headway's engine. `options` are EngineConfig's fields."""

    def __init__(self) -> None:
        super().__init__()
        self._serves_many = False

    def prepare(self) -> None:
        """See predictors.base.PreparingPredictor: grammars'."""
        self._serves_many = True

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """See predictors.base.Predictor; raises as load_engine."""
        config = make_engine_config(options)
        engine, info = load_engine(Path(source), config, report, prepares_grammars=self._serves_many)
        self._engine = engine
        return wire.Ready(info=info)

    def handle(self, message: wire.Submit | wire.Abort | wire.Hold | wire.Infer) -> Iterable[wire.Up]:
        """Answers a Submit at once, or, where its grammar is compiled first, with a later step; the terminal events of
        an Abort come with the next step."""
        match message:
            case wire.Submit():
                answer = self._loaded.submit(message)
                return [] if answer is None else [answer]
            case wire.Abort():
                self._loaded.abort(message)
                return self._loaded.take_answers()
            case wire.Hold():
                self._loaded.hold(message)
            case wire.Infer():
                error = UnsupportedFeature("this is a language model: it takes prompts and no tensors")
                return [wire.Outputs(request_id=message.request_id, error=error.to_wire())]
        return []

    def close(self) -> None:
        """Lets go of weights and caches, and of the processes that hold parts of them."""
        if self._engine is not None:
            self._engine.close()
        super().close()

    def wait_s(self) -> float | None:
        """See predictors.base.TimedPredictor."""
        return None if self._engine is None else self._engine.wait_s()

    def close_queue(self) -> None:
        """Tells that no Submit comes before what waits has started."""
        self._loaded.close_queue()

    def step(self) -> Iterable[wire.Up]:
        """One step of the engine; answers, and what it tells of prompts, come before the tokens behind them."""
        step = self._loaded.step()
        return [*self._loaded.take_answers(), *self._loaded.take_prompt_logprobs(), step]

    def profile(self, num_steps: int) -> None:
        """See predictors.base.ProfiledPredictor."""
        self._loaded.profile(num_steps)

    def take_profile(self) -> list[wire.ProfiledStep] | None:
        """See predictors.base.ProfiledPredictor."""
        return self._loaded.take_profile()


def make_engine_config(options: dict[str, Any]) -> EngineConfig:
    """EngineConfig from Load.options. Raises InvalidConfig for an unknown name or a value of a wrong type."""
    unknown = sorted(options.keys() - {field.name for field in fields(EngineConfig)})
    if unknown:
        raise InvalidConfig(f"the engine has no option {unknown[0]!r}", param=unknown[0])
    values = {}
    for name, kind in get_type_hints(EngineConfig).items():
        if name in options:
            try:
                values[name] = msgspec.convert(options[name], kind)
            except msgspec.ValidationError as error:
                raise InvalidConfig(f"{name} is {options[name]!r}; it must be {_kinds(kind)}", param=name) from error
    return EngineConfig(**values)


def _kinds(kind: Any) -> str:
    """What a field may be, in words: "one of auto, torch", "int or None"."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is type(None):
        return "None"
    return " or ".join(map(_kinds, get_args(kind))) or str(kind.__name__)
