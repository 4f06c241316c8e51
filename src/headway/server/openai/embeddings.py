"""POST /v1/embeddings: vectors of texts or token ids, as numbers or as base64 of little-endian float32."""

import array
import base64
import sys
import time
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, ClassVar, Literal, cast

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import Field

from headway.core.embedding import EmbedRequest
from headway.core.request import TextPrompt, TokensPrompt
from headway.errors import InvalidRequest
from headway.server.body import Body, ModelName, Refusal, read_body
from headway.server.errors import json_response
from headway.server.openai.convert import to_prompts
from headway.server.openai.metered import run_metered
from headway.server.openai.schema import OPENAI_IGNORED, Prompts
from headway.server.openapi import takes
from headway.server.state import state_of

router = APIRouter(prefix="/v1", tags=["OpenAI"])

ENCODER_REFUSED: Mapping[str, Refusal] = {
    "activation": Refusal("the model's files say how scores are made"),
    "softmax": Refusal("the model's files say how scores are made"),
    "use_activation": Refusal("the model's files say how scores are made", (True,)),
    "mm_processor_kwargs": Refusal("texts alone are taken", ({},)),
    "max_tokens_per_doc": Refusal("send truncate_prompt_tokens"),
}
"""Fields of other servers' routes for encoders."""


class EncoderBody(Body):
    """What routes of encoders share."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED
    refused: ClassVar[Mapping[str, Refusal]] = ENCODER_REFUSED

    model: ModelName
    truncate_prompt_tokens: int | None = Field(
        None, description="Tokens that longer texts are cut to; -1: what the model takes. Without it they are refused."
    )
    priority: int | None = Field(None, description="Lower goes first.", ge=-(2**31), lt=2**31)


class EmbeddingBody(EncoderBody):
    """POST /v1/embeddings."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        **ENCODER_REFUSED,
        "messages": Refusal("send input"),
        "normalize": Refusal("the model's files say whether vectors are normalised"),
        "input_type": Refusal("put the model's own prompt for it before the text"),
        "embed_dtype": Refusal("vectors are float32", ("float32",)),
        "endianness": Refusal("base64 is of little-endian numbers", ("native", "little")),
    }

    input: Prompts
    encoding_format: str | None = Field(None, description="float (the default) or base64.")
    dimensions: int | None = None
    add_special_tokens: bool | None = None


class EmbeddingOut(msgspec.Struct, frozen=True):
    """One vector."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EncoderUsage(msgspec.Struct, frozen=True):
    """Tokens of all texts; there is no output to count."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    """The vectors, in the order of the inputs."""

    id: str
    created: int
    model: str
    data: list[EmbeddingOut]
    usage: EncoderUsage
    object: Literal["list"] = "list"


@router.post("/embeddings", openapi_extra=takes(EmbeddingBody))
async def embeddings(request: Request) -> Response:
    """A vector of each input, in their order."""
    state = state_of(request)
    arrived_s = state.clock.now()
    body = await read_body(request, EmbeddingBody)
    wanted = embed_request(body)
    encode = _encoding(body.encoding_format)
    made = await run_metered(request, "embeddings", wanted.model, arrived_s, state.service.embed(wanted))
    data = [EmbeddingOut(index, encode(vector)) for index, vector in enumerate(made.vectors)]
    usage = EncoderUsage(made.num_tokens, made.num_tokens)
    return json_response(EmbeddingAnswer(wanted.request_id, int(time.time()), body.model, data, usage))


def embed_request(body: EmbeddingBody) -> EmbedRequest:
    """The request behind a body. Raises InvalidRequest."""
    prompts = to_prompts(body.input, add_special_tokens=body.add_special_tokens is not False, param="input")
    if body.dimensions is not None and body.dimensions < 1:
        raise InvalidRequest(f"dimensions is {body.dimensions}; it must be at least 1", param="dimensions")
    return EmbedRequest(
        request_id=f"embd-{token_hex(16)}",
        model=body.model,
        inputs=cast(Sequence[TextPrompt | TokensPrompt], prompts),
        dimensions=body.dimensions,
        truncate_to=body.truncate_prompt_tokens,
        priority=body.priority or 0,
    )


def _encoding(name: str | None) -> Any:
    """How a vector's bytes are written."""
    if name == "base64":
        return lambda vector: base64.b64encode(vector).decode()
    if name in (None, "float"):
        return to_floats
    raise InvalidRequest(f"encoding_format is {name[:50]!r}; it must be float or base64", param="encoding_format")


def to_floats(vector: bytes) -> list[float]:
    """Little-endian float32 as numbers."""
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
