"""POST /v1/rerank: documents by how well they answer a query, as Jina, Cohere and vLLM have it; also /rerank."""

from secrets import token_hex
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType
from pydantic import Field

from headway.core.embedding import ScoreRequest
from headway.errors import InvalidRequest
from headway.server.body import read_body
from headway.server.errors import json_response
from headway.server.openai.embeddings import EncoderBody, EncoderUsage
from headway.server.openai.metered import run_metered
from headway.server.openai.score import to_texts
from headway.server.openapi import takes
from headway.server.state import state_of

router = APIRouter(tags=["OpenAI"])


class RerankBody(EncoderBody):
    """POST /v1/rerank."""

    query: str
    documents: list[Any] = Field(description="Texts, or objects with a text.")
    top_n: int | None = Field(None, description="How many of the best are told; without it all are.")
    return_documents: bool | None = Field(None, description="false: results have no text.")


class Document(msgspec.Struct, frozen=True):
    """What was ranked."""

    text: str


class RerankOut(msgspec.Struct, frozen=True):
    """One document's place."""

    index: int
    """In the request."""
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankAnswer(msgspec.Struct, frozen=True):
    """The results, best first; of equal ones the earlier document."""

    id: str
    model: str
    results: list[RerankOut]
    usage: EncoderUsage


@router.post("/v1/rerank", openapi_extra=takes(RerankBody))
@router.post("/rerank", openapi_extra=takes(RerankBody))
async def rerank(request: Request) -> Response:
    """Documents by a cross-encoder's score with the query, or by the cosine of an encoder's vectors."""
    state = state_of(request)
    arrived_s = state.clock.now()
    body = await read_body(request, RerankBody)
    documents = _documents(body.documents)
    if body.top_n is not None and body.top_n < 1:
        raise InvalidRequest(f"top_n is {body.top_n}; it must be at least 1", param="top_n")
    wanted = ScoreRequest(
        request_id=f"rerank-{token_hex(16)}",
        model=body.model,
        firsts=[body.query],
        seconds=documents,
        param=("query", "documents"),
        truncate_to=body.truncate_prompt_tokens,
        priority=body.priority or 0,
    )
    made = await run_metered(request, "rerank", wanted.model, arrived_s, state.service.score(wanted))
    best = sorted(range(len(documents)), key=lambda place: -made.scores[place])[: body.top_n]
    has_text = body.return_documents is not False
    results = [
        RerankOut(place, made.scores[place], Document(documents[place]) if has_text else UNSET) for place in best
    ]
    usage = EncoderUsage(made.num_tokens, made.num_tokens)
    return json_response(RerankAnswer(wanted.request_id, body.model, results, usage))


def _documents(given: list[Any]) -> list[str]:
    """Texts, or objects with a text alone. Raises InvalidRequest."""
    return to_texts([_text_of(each) for each in given], "documents")


def _text_of(each: Any) -> Any:
    return each["text"] if isinstance(each, dict) and each.keys() == {"text"} else each
