"""Embeddings of an OpenAI-compatible server: the body that asks for them, and the vectors of its answer."""

import array
import base64
import binascii
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from headway.core.embedding import Embedded, EmbedRequest
from headway.core.request import TextPrompt, TokensPrompt
from headway.errors import UnsupportedFeature, UpstreamFailed
from headway.service.remote.options import OpenAIOptions


def embed_body(request: EmbedRequest, model: str, options: OpenAIOptions) -> dict[str, Any]:
    """The body of /embeddings. Raises UnsupportedFeature."""
    inputs = [_embed_input(prompt) for prompt in request.inputs]
    body: dict[str, Any] = {"model": model, "input": inputs, "encoding_format": "base64"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    if request.truncate_to is not None:
        if options.dialect != "vllm":
            raise UnsupportedFeature(
                "truncate_prompt_tokens can not be asked of this model: its server takes OpenAI's fields alone",
                param="truncate_prompt_tokens",
            )
        body["truncate_prompt_tokens"] = request.truncate_to
    return body


class _Vector(msgspec.Struct):
    embedding: str | list[float]
    index: int


class _VectorUsage(msgspec.Struct):
    prompt_tokens: int = 0


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _VectorUsage | None = None


def _embed_input(prompt: TextPrompt | TokensPrompt) -> str | list[int]:
    return prompt.text if isinstance(prompt, TextPrompt) else list(prompt.token_ids)


def read_vectors(answer: bytes, num_inputs: int, server: str) -> Embedded:
    """Vectors in base64, or in numbers where the server knows no base64. Raises UpstreamFailed."""
    try:
        told = msgspec.json.decode(answer, type=_Vectors)
        vectors = {vector.index: _vector(vector.embedding) for vector in told.data}
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error) as error:
        raise UpstreamFailed(f"{server} answered with what are no embeddings: {error}") from error
    if sorted(vectors) != list(range(num_inputs)):
        raise UpstreamFailed(f"{server} answered embeddings {sorted(vectors)[:20]} of {num_inputs} texts")
    num_tokens = told.usage.prompt_tokens if told.usage else 0
    return Embedded([vectors[place] for place in range(num_inputs)], _spread(num_tokens, num_inputs))


def _vector(told: str | Sequence[float]) -> bytes:
    if isinstance(told, str):
        return base64.b64decode(told, validate=True)
    numbers = array.array("f", told)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _spread(total: int, count: int) -> list[int]:
    """The server tells the sum alone: the first text has it."""
    return [total] + [0] * (count - 1)
