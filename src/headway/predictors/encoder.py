"""EncoderPredictor: an encoder (BERT's family) on Headway's executors. Only translates: the work is EncoderEngine's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import headway_wire as wire
from headway.engine.encoder import EncoderEngine
from headway.engine.encoder_loading import load_encoder
from headway.errors import UnsupportedFeature
from headway.predictors.base import EnginePredictor, Report
from headway.predictors.headway import make_engine_config


class EncoderPredictor(EnginePredictor[EncoderEngine]):
    """Vectors of texts, scores of pairs. `options` are EngineConfig's fields."""

    def __init__(self) -> None:
        super().__init__()
        self._accepted: list[wire.Accepted] = []
        """Told with the next step: whoever asks waits for a vector, and its process would wake, on a core that the step
        computes on, for less."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """See predictors.base.Predictor; raises as load_encoder."""
        self._engine, info = load_encoder(Path(source), make_engine_config(options), report)
        return wire.Ready(info=info)

    def handle(self, message: wire.Submit | wire.Abort | wire.Hold | wire.Infer) -> Iterable[wire.Up]:
        """Refuses a Submit at once; that one was accepted, and the terminal event of an Abort, come with the next step.
        Nothing is ever held."""
        match message:
            case wire.Submit():
                answer = self._loaded.submit(message)
                if isinstance(answer, wire.Refused):
                    return [answer]
                self._accepted.append(answer)
            case wire.Abort():
                self._loaded.abort(message)
            case wire.Infer():
                error = UnsupportedFeature("this is an encoder: it takes texts and no tensors")
                return [wire.Outputs(request_id=message.request_id, error=error.to_wire())]
        return []

    def close_queue(self) -> None:
        """Nothing waits for a fuller batch."""

    def step(self) -> Iterable[wire.Up]:
        """One step of the engine."""
        accepted, self._accepted = self._accepted, []
        return [*accepted, *self._loaded.step()]
