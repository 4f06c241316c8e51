"""The plain bodies to GenerateRequests and prompts, valid by construction."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from headway.core.request import GenerateRequest, Prompt, TextPrompt
from headway.errors import InvalidRequest
from headway.server.basic.schema import PlainBody, TokenizeBody
from headway.server.openai.convert import MAX_PROMPTS, chat_prompt, check_num_choices, to_prompts
from headway.server.sampling import to_sampling, usual_max_tokens

PLAIN_MAX_TOKENS = 20
"""Default of the plain routes."""


def plain_requests(
    body: PlainBody, prompts: Sequence[str], model: str, defaults: Mapping[str, Any]
) -> list[GenerateRequest]:
    """One request a prompt, in order. Raises InvalidRequest."""
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise InvalidRequest(f"prompts has {len(prompts)} texts; 1 to {MAX_PROMPTS} are allowed", param="prompts")
    max_tokens = usual_max_tokens(body, defaults, PLAIN_MAX_TOKENS)
    sampling = to_sampling(body, defaults, max_tokens=max_tokens)
    check_num_choices(len(prompts), sampling.n)
    base = f"gen-{token_hex(16)}"
    with_special = body.add_special_tokens is not False
    return [
        GenerateRequest(
            f"{base}-{i}",
            model,
            TextPrompt(text, with_special),
            sampling,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
        )
        for i, text in enumerate(prompts)
    ]


def tokenize_prompt(body: TokenizeBody) -> Prompt:
    """The one prompt or chat to be counted. Raises InvalidRequest."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens is not for messages: the template writes them", param="add_special_tokens"
            )
        return chat_prompt(body)
    if not isinstance(body.prompt, str):
        raise InvalidRequest("prompt must be a string", param="prompt")
    return to_prompts(body.prompt, add_special_tokens=body.add_special_tokens is not False)[0]
