"""OfflineEncoder: an encoder's predictor in the calling process, for LLM.embed and LLM.score; all of a call or none."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import headway_wire as wire
from headway.core.embedding import EmbeddingOutput, EmbedRequest, ScoreOutput, ScoreRequest
from headway.core.request import TextPrompt, TokensPrompt
from headway.errors import InternalError, from_wire
from headway.predictors.base import Predictor
from headway.worker.embed_prompt import EncoderInputs, PreparedText, prepare_texts_now
from headway.worker.prompt import ModelText


class OfflineEncoder:
    """One call of LLM.

    Args:
        text: the model's.
        predictor: loaded; what it is made for is checked by the text.
        info: what it told when it was ready.
        truncate_to: as EmbedRequest.
    """

    def __init__(self, text: ModelText, predictor: Predictor, info: Mapping[str, Any], truncate_to: int | None) -> None:
        self._text = text
        self._predictor = predictor
        self._limit = int(info["max_model_len"])
        self._truncate_to = truncate_to

    def embed(self, inputs: Sequence[TextPrompt | TokensPrompt], dimensions: int | None) -> list[EmbeddingOutput]:
        """A vector of each input. Raises as LLM.embed."""
        from headway.worker.scoring import cut_vectors, embed_inputs, embedder_of, vectors_of

        encoder = embedder_of(self._text)
        encoder.check_dimensions(dimensions)
        if not inputs:
            return []
        vectors, counts = self._run(embed_inputs(EmbedRequest(request_id="", model="", inputs=inputs)))
        rows = vectors_of(cut_vectors(vectors, encoder, dimensions)).tolist()
        return [EmbeddingOutput(row, count) for row, count in zip(rows, counts, strict=True)]

    def score(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[ScoreOutput]:
        """A score of each pair. Raises as LLM.score."""
        from headway.worker.scoring import check_pairs, score_inputs, scorer_of, scores_of

        encoder = scorer_of(self._text)
        request = ScoreRequest(request_id="", model="", firsts=firsts, seconds=seconds)
        check_pairs(request)
        vectors, _ = self._run(score_inputs(encoder, request))
        return [ScoreOutput(score) for score in scores_of(encoder, request, vectors)]

    def _run(self, inputs: EncoderInputs) -> tuple[list[bytes], list[int]]:
        """What the encoder gives for each input, and the tokens of each."""
        texts = prepare_texts_now(self._text, inputs, max_model_len=self._limit, truncate_to=self._truncate_to)
        return run_texts(self._predictor, texts), [len(text.token_ids) for text in texts]


def run_texts(predictor: Predictor, texts: Sequence[PreparedText]) -> list[bytes]:
    """The vector of each text, little-endian float32, in their order. Raises HeadwayError; then nothing runs on."""
    made: dict[str, bytes] = {}
    try:
        for place, text in enumerate(texts):
            submit = wire.Submit(
                request_id=str(place), prompt_token_ids=list(text.token_ids), second_start=text.second_start
            )
            _take(predictor.handle(submit), made)
        while predictor.has_work():
            _take(predictor.step(), made)
    finally:
        for place in range(len(texts)):
            predictor.handle(wire.Abort(request_id=str(place)))
        while predictor.has_work():
            list(predictor.step())
    if len(made) != len(texts):
        raise InternalError(f"{len(texts)} texts were sent to the encoder, and {len(made)} vectors came")
    return [made[str(place)] for place in range(len(texts))]


def _take(messages: Iterable[wire.Up], made: dict[str, bytes]) -> None:
    for message in messages:
        match message:
            case wire.Embedding():
                made[message.request_id] = message.data
            case wire.Refused():
                raise from_wire(message.error)
            case wire.Step():
                for error in (event.error for event in message.events if event.error is not None):
                    raise from_wire(error)
