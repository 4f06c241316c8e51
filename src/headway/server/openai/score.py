"""POST /v1/score: how well texts fit each other, pair by pair, as vLLM has it; also /score."""

import time
from secrets import token_hex
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import WithJsonSchema

from headway.core.embedding import ScoreRequest
from headway.errors import InvalidRequest
from headway.server.body import describe, read_body
from headway.server.errors import json_response
from headway.server.openai.convert import MAX_PROMPTS
from headway.server.openai.embeddings import EncoderBody, EncoderUsage
from headway.server.openai.metered import run_metered
from headway.server.openapi import takes
from headway.server.state import state_of

router = APIRouter(tags=["OpenAI"])

Texts = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})]


class ScoreBody(EncoderBody):
    """POST /v1/score: one text_1 for all of text_2, or as many of both."""

    text_1: Texts
    text_2: Texts


class ScoreOut(msgspec.Struct, frozen=True):
    """One pair's score."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreAnswer(msgspec.Struct, frozen=True):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[ScoreOut]
    usage: EncoderUsage
    object: Literal["list"] = "list"


@router.post("/v1/score", openapi_extra=takes(ScoreBody))
@router.post("/score", openapi_extra=takes(ScoreBody))
async def score(request: Request) -> Response:
    """A cross-encoder's score of each pair, or the cosine of an encoder's vectors."""
    state = state_of(request)
    arrived_s = state.clock.now()
    body = await read_body(request, ScoreBody)
    wanted = ScoreRequest(
        request_id=f"score-{token_hex(16)}",
        model=body.model,
        firsts=to_texts(body.text_1, "text_1"),
        seconds=to_texts(body.text_2, "text_2"),
        truncate_to=body.truncate_prompt_tokens,
        priority=body.priority or 0,
    )
    made = await run_metered(request, "score", wanted.model, arrived_s, state.service.score(wanted))
    data = [ScoreOut(index, value) for index, value in enumerate(made.scores)]
    usage = EncoderUsage(made.num_tokens, made.num_tokens)
    return json_response(ScoreAnswer(wanted.request_id, int(time.time()), body.model, data, usage))


def to_texts(value: object, param: str) -> list[str]:
    """A text or a list of texts. Raises InvalidRequest."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise InvalidRequest(f"{param} is {describe(value)}; it must be a text or a list of texts", param=param)
    if len(texts) > MAX_PROMPTS:
        raise InvalidRequest(
            f"{param} has {len(texts)} texts, at most {MAX_PROMPTS}: send several requests", param=param
        )
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"{param}[{place}] is {describe(text)}; it must be a text", param=param)
    return texts
