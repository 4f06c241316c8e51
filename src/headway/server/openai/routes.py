"""OpenAI's routes: they read, convert, and answer."""

from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from headway.core.request import ChatPrompt, GenerateRequest
from headway.errors import ModelNotFound
from headway.server.answer import Shapes, answer
from headway.server.anthropic.models import asks_for_anthropic, model_info, model_page
from headway.server.body import read_body
from headway.server.errors import json_response
from headway.server.openai.answers import ChatAnswers, CompletionAnswers, Options
from headway.server.openai.chunks import ChatChunks, CompletionChunks
from headway.server.openai.convert import chat_request, completion_requests
from headway.server.openai.schema import ChatBody, CompletionBody, GenerateBody, ModelList, ModelOut
from headway.server.openapi import takes
from headway.server.state import state_of
from headway.service.protocol import ModelCard

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.get("/models")
async def list_models(request: Request) -> Response:
    """The served models; Anthropic's clients get the form that they read."""
    cards = state_of(request).service.models()
    if asks_for_anthropic(request):
        return json_response(model_page(cards))
    return json_response(ModelList([_model_out(card) for card in cards]))


@router.get("/models/{model:path}")
async def get_model(request: Request, model: str) -> Response:
    """One served model."""
    for card in state_of(request).service.models():
        if card.id == model:
            return json_response(model_info(card) if asks_for_anthropic(request) else _model_out(card))
    raise ModelNotFound("no model of that name is served; GET /v1/models lists them", param="model")


@router.post("/chat/completions", openapi_extra=takes(ChatBody))
async def chat_completions(request: Request) -> Response:
    """A chat's next message."""
    body = await read_body(request, ChatBody)
    defaults = await state_of(request).service.generation_defaults(body.model) if body.model else {}
    generate = chat_request(body, defaults)
    continued = _continued(body, generate)
    options = replace(
        _options(body, generate.request_id, has_logprobs=bool(body.logprobs), continued=continued),
        has_reasoning=body.include_reasoning is not False,
        is_named=generate.tool_use.choice == "named",
    )
    shapes = Shapes(ChatAnswers(options).whole, partial(ChatChunks, options))
    return await answer(request, [generate], shapes, is_stream=bool(body.stream))


@router.post("/completions", openapi_extra=takes(CompletionBody))
async def completions(request: Request) -> Response:
    """Continuations of one or more prompts; choice i of prompt p has the index p * n + i."""
    body = await read_body(request, CompletionBody)
    defaults = await state_of(request).service.generation_defaults(body.model) if body.model else {}
    requests = completion_requests(body, defaults)
    answer_id = requests[0].request_id.rpartition("-")[0]
    options = _options(
        body,
        answer_id,
        has_logprobs=body.logprobs is not None,
        num_top_logprobs=body.logprobs or 0,
        has_echo=bool(body.echo),
    )
    shapes = Shapes(CompletionAnswers(options).whole, partial(CompletionChunks, options))
    return await answer(request, requests, shapes, is_stream=bool(body.stream))


def _continued(body: ChatBody, generate: GenerateRequest) -> str:
    """The text of the last message, if the answer begins with it."""
    if not body.echo or not isinstance(generate.prompt, ChatPrompt):
        return ""
    return str(generate.prompt.messages[-1]["content"])


def _options(
    body: GenerateBody,
    answer_id: str,
    *,
    has_logprobs: bool,
    num_top_logprobs: int = 0,
    has_echo: bool = False,
    continued: str = "",
) -> Options:
    stream_options = body.stream_options
    return Options(
        id=answer_id,
        has_logprobs=has_logprobs,
        num_top_logprobs=num_top_logprobs,
        num_prompt_logprobs=body.prompt_logprobs,
        has_echo=has_echo,
        continued=continued,
        include_usage=stream_options is not None and bool(stream_options.include_usage),
        return_token_ids=bool(body.return_token_ids),
    )


def _model_out(card: ModelCard) -> ModelOut:
    return ModelOut(
        card.id,
        card.created,
        card.root,
        card.max_model_len,
        state=card.state,
        kind=card.kind,
        parent=None if card.kind == "model" else card.model,
        type=card.type,
        framework=card.framework,
        version=card.version or UNSET,
        description=card.description or UNSET,
        memory_bytes=card.num_bytes,
        over_limit_bytes=card.over_limit_bytes or UNSET,
        is_pinned=card.is_pinned,
        error=UNSET if card.error is None else card.error.message,
        retry_after_s=UNSET if card.retry_at_s is None else round(card.retry_at_s, 3),
        update_error=UNSET if card.update_error is None else card.update_error.message,
    )
