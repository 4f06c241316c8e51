"""What becomes of an encoder's vectors: cut, compared, or read as scores. Pure: inputs and bytes in, numbers out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headway.core.embedding import EmbedRequest, Purpose, ScoreRequest, TextPair
from headway.core.request import TextPrompt
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.worker.embed_prompt import EncoderInputs
from headway.worker.encoder_text import EncoderText
from headway.worker.prompt import ModelText

Float32 = npt.NDArray[np.float32]


def vectors_of(vectors: Sequence[bytes]) -> Float32:
    """[num, width] of little-endian float32."""
    rows: Float32 = np.stack([np.frombuffer(vector, "<f4") for vector in vectors])
    return rows


def cut_vectors(vectors: Sequence[bytes], encoder: EncoderText, dimensions: int | None) -> Sequence[bytes]:
    """The first `dimensions` numbers of each, of length 1 again where the model's are."""
    if dimensions is None or dimensions == encoder.width:
        return vectors
    rows = vectors_of(vectors)[:, :dimensions]
    if encoder.is_normalised:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return [row.astype("<f4").tobytes() for row in rows]


def embedder_of(text: ModelText) -> EncoderText:
    """The model's encoder, if it makes vectors. Raises UnsupportedFeature."""
    encoder = _encoder_of(text, "makes no embeddings")
    if encoder.reads_pairs:
        raise UnsupportedFeature(
            "this model scores pairs of texts and makes no embeddings: send /v1/rerank or /v1/score, or ask a model "
            "without a head",
            param="model",
        )
    return encoder


def scorer_of(text: ModelText) -> EncoderText:
    """The model's encoder, which scores by its head or by cosine. Raises UnsupportedFeature."""
    return _encoder_of(text, "scores no texts")


def _encoder_of(text: ModelText, what: str) -> EncoderText:
    if text.encoder is None:
        raise UnsupportedFeature(
            f"this model is a language model and {what}: ask an encoder (BERT's family)", param="model"
        )
    return text.encoder


def check_pairs(request: ScoreRequest) -> None:
    """Raises InvalidRequest unless there are as many firsts as seconds, or one for all."""
    first_name, second_name = request.param
    num_first, num_second = len(request.firsts), len(request.seconds)
    for name, num in ((first_name, num_first), (second_name, num_second)):
        if not num:
            raise InvalidRequest(f"{name} is an empty list; it must hold at least one text", param=name)
    if num_first not in (1, num_second):
        raise InvalidRequest(
            f"{first_name} has {num_first} texts and {second_name} {num_second}: send one {first_name} for all, or as "
            "many of both",
            param=first_name,
        )
    for name, texts in ((first_name, request.firsts), (second_name, request.seconds)):
        if "" in texts:
            raise InvalidRequest(f"{name} has an empty text: each needs at least one character", param=name)


def embed_inputs(request: EmbedRequest) -> EncoderInputs:
    """What is computed for vectors."""
    num = len(request.inputs)
    names = ["input"] if num == 1 else [f"input[{place}]" for place in range(num)]
    return EncoderInputs(request.inputs, names, ["text"] * num)


def score_inputs(encoder: EncoderText, request: ScoreRequest) -> EncoderInputs:
    """What is computed for scores: each pair where the model reads pairs, else each text once: firsts, then seconds."""
    first_names, second_names = (
        [name] if len(texts) == 1 else [f"{name}[{place}]" for place in range(len(texts))]
        for name, texts in zip(request.param, (request.firsts, request.seconds), strict=True)
    )
    if encoder.reads_pairs:
        firsts = request.firsts if len(request.firsts) > 1 else [request.firsts[0]] * len(request.seconds)
        pairs = [TextPair(*pair) for pair in zip(firsts, request.seconds, strict=True)]
        return EncoderInputs(pairs, second_names, ["text"] * len(pairs))
    texts = [TextPrompt(text) for text in (*request.firsts, *request.seconds)]
    purposes: list[Purpose] = ["query"] * len(request.firsts)
    purposes += ["document"] * len(request.seconds)
    return EncoderInputs(texts, first_names + second_names, purposes)


def scores_of(encoder: EncoderText, request: ScoreRequest, vectors: Sequence[bytes]) -> list[float]:
    """A score of each pair: what the head gave, or the cosine."""
    rows = vectors_of(vectors)
    if encoder.reads_pairs:
        return [float(score) for score in rows[:, 0]]
    unit = rows.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    num_first = len(request.firsts)
    return [float(score) for score in (unit[:num_first] * unit[num_first:]).sum(axis=1)]
