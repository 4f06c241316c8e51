"""EncoderPredictor: an encoder (BERT's family) on Headway's executors. Only translates: the work is EncoderEngine's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import headway_wire as wire
from headway.engine.encoder import EncoderEngine
from headway.engine.encoder_loading import load_encoder
from headway.errors import HeadwayError, ModelNotReady, QueueFull, UnsupportedFeature
from headway.predictors.base import EnginePredictor, Report
from headway.predictors.headway import make_engine_config
from headway.predictors.late_tokenizer import LateTokenizer
from headway.text.tokenizer import Tokenizer


class EncoderPredictor(EnginePredictor[EncoderEngine]):
    """Vectors of texts, scores of pairs. `options` are EngineConfig's fields."""

    def __init__(self) -> None:
        super().__init__()
        self._accepted: list[wire.Accepted] = []
        """Told with the next step: whoever asks waits for a vector, and its process would wake, on a core that the step
        computes on, for less."""
        self._tokenizer: LateTokenizer | None = None
        self._texts: dict[str, int] = {}
        """Tokens of each SubmitText that is open."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> wire.Ready:
        """See predictors.base.Predictor; raises as load_encoder."""
        self._engine, info = load_encoder(Path(source), make_engine_config(options), report)
        self._tokenizer = LateTokenizer(Path(source))
        return wire.Ready(info=info | {"takes_texts": True})

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

    def submit_text(self, message: wire.SubmitText) -> Iterable[wire.Up]:
        """See predictors.base.TextPredictor: refuses at once; all else comes with the steps."""
        tokenizer = None if self._tokenizer is None else self._tokenizer.take()
        if tokenizer is None:
            return [_refuse(message, ModelNotReady("the model's tokenizer is being read: try again"))]
        try:
            token_ids = make_ids(tokenizer, message.text)
        except HeadwayError as error:
            return [_refuse(message, error)]
        answer = self._loaded.submit(wire.Submit(request_id=message.request_id, prompt_token_ids=token_ids))
        if isinstance(answer, wire.Refused):
            return [answer]
        self._texts[message.request_id] = len(token_ids)
        return []

    def close_queue(self) -> None:
        """Nothing waits for a fuller batch."""

    def step(self) -> Iterable[wire.Up]:
        """One step of the engine."""
        accepted, self._accepted = self._accepted, []
        made = self._loaded.step()
        if self._texts:
            made = [told for message in made for told in self._tell_texts(message)]
        return [*accepted, *made]

    def _tell_texts(self, message: wire.Up) -> Iterable[wire.Up]:
        """The message, where it is about a SubmitText as one of these is told."""
        if isinstance(message, wire.Embedding) and message.request_id in self._texts:
            return [msgspec.structs.replace(message, num_tokens=self._texts.pop(message.request_id))]
        if not isinstance(message, wire.Step) or not message.events:
            return [message]
        own = [event for event in message.events if self._texts.pop(event.request_id, None) is not None]
        others = [event for event in message.events if event not in own]
        return [msgspec.structs.replace(message, events=others), *map(_end, own)]


def make_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text's ids and the model's own around them; control tokens that stand in it are text. Raises InvalidRequest."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [*tokenizer.prefix, *ids, *tokenizer.suffix]


def _refuse(message: wire.SubmitText, error: HeadwayError) -> wire.Refused:
    return wire.Refused(request_id=message.request_id, error=error.to_wire())


def _end(event: wire.TokenEvent) -> wire.Refused:
    """Of one that has no vector."""
    error = event.error or QueueFull(f"the request was ended ({event.stop_reason or 'abort'})").to_wire()
    return wire.Refused(request_id=event.request_id, error=error)
