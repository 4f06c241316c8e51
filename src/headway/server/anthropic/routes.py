"""Anthropic's routes: they read, convert, and answer."""

from functools import partial

from fastapi import APIRouter, Request, Response

from headway.server.answer import Shapes, answer
from headway.server.anthropic.answers import MessageAnswers, Options
from headway.server.anthropic.chunks import MessageChunks
from headway.server.anthropic.convert import message_prompt, message_request
from headway.server.anthropic.schema import CountTokensBody, MessagesBody, TokenCount
from headway.server.body import read_body
from headway.server.errors import json_response
from headway.server.openapi import takes
from headway.server.refusals import REQUEST_ID
from headway.server.state import state_of

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"])


@router.post("", openapi_extra=takes(MessagesBody))
async def messages(request: Request) -> Response:
    """A conversation's next message."""
    body = await read_body(request, MessagesBody)
    generate = message_request(body, await state_of(request).service.generation_defaults(body.model))
    options = Options(
        id=generate.request_id,
        max_tokens=body.max_tokens,
        shows_thinking=body.thinking is None or body.thinking.display != "omitted",
        request_id=request.scope.get(REQUEST_ID),
    )
    shapes = Shapes(MessageAnswers(options).whole, partial(MessageChunks, options))
    return await answer(request, [generate], shapes, is_stream=bool(body.stream))


@router.post("/count_tokens", openapi_extra=takes(CountTokensBody))
async def count_tokens(request: Request) -> Response:
    """The tokens of the prompt that the same body would make."""
    body = await read_body(request, CountTokensBody)
    tokens = await state_of(request).service.tokenize(body.model, message_prompt(body))
    return json_response(TokenCount(len(tokens)))
