"""The plain routes, and counting tokens."""

from fastapi import APIRouter, Request, Response

from headway.server.answer import Shapes, answer
from headway.server.basic.answers import PlainAnswers
from headway.server.basic.convert import plain_requests, tokenize_prompt
from headway.server.basic.schema import (
    DetokenizeBody,
    GenerateManyBody,
    GenerateOneBody,
    PlainBody,
    Text,
    TokenizeBody,
    Tokens,
)
from headway.server.body import read_body
from headway.server.errors import json_response
from headway.server.openapi import takes
from headway.server.state import state_of

router = APIRouter(tags=["Plain"])


@router.post("/basic_generate", openapi_extra=takes(GenerateOneBody))
async def basic_generate(request: Request) -> Response:
    """One prompt to one text."""
    body = await read_body(request, GenerateOneBody)
    return await _generate(request, body, [body.prompt], is_one=True)


@router.post("/generate", openapi_extra=takes(GenerateManyBody))
async def generate(request: Request) -> Response:
    """Prompts to texts, in order."""
    body = await read_body(request, GenerateManyBody)
    return await _generate(request, body, body.prompts, is_one=False)


@router.post("/generate_stream", openapi_extra=takes(GenerateOneBody))
async def generate_stream(request: Request) -> Response:
    """One prompt to its text as it comes."""
    body = await read_body(request, GenerateOneBody)
    return await _generate(request, body, [body.prompt], is_one=True, is_stream=True)


@router.post("/tokenize", openapi_extra=takes(TokenizeBody))
async def tokenize(request: Request) -> Response:
    """The ids that the model would get, and how many it can take."""
    body = await read_body(request, TokenizeBody)
    state = state_of(request)
    model = body.model or state.default_model()
    tokens = await state.service.tokenize(model, tokenize_prompt(body))
    max_model_len = next((card.max_model_len for card in state.service.models() if card.id == model), None)
    answer_body = Tokens(len(tokens), max_model_len, tokens)
    if body.return_token_strs:
        texts = await state.service.token_texts(model, tokens)
        answer_body = Tokens(len(tokens), max_model_len, tokens, texts)
    return json_response(answer_body)


@router.post("/detokenize", openapi_extra=takes(DetokenizeBody))
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    body = await read_body(request, DetokenizeBody)
    state = state_of(request)
    return json_response(Text(await state.service.detokenize(body.model or state.default_model(), body.tokens)))


async def _generate(
    request: Request, body: PlainBody, prompts: list[str], *, is_one: bool, is_stream: bool = False
) -> Response:
    state = state_of(request)
    model = body.model or state.default_model()
    requests = plain_requests(body, prompts, model, await state.service.generation_defaults(model))
    answers = PlainAnswers(prompts, return_full_text=bool(body.return_full_text))
    whole = answers.one if is_one else answers.many
    return await answer(request, requests, Shapes(whole, answers.events), is_stream=is_stream)
