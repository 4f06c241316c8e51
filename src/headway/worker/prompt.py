"""From a request's prompt to what is submitted: text to token ids, and the checks that need the model.

Called by service/local and by the offline LLM. Pure but for the thread that long texts are tokenised in.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import headway_wire as wire
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import SamplingParams
from headway.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from headway.text.chat_template import ChatTemplate
from headway.text.tokenizer import Tokenizer
from headway.worker.encoder_text import EncoderText

LONG_TEXT_CHARACTERS = 16 * 1024
"""A longer prompt is tokenised in a thread, so that the event loop goes on."""

_RENDER_ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt"})
_WIRE_FIELDS = tuple(name for name in wire.Sampling.__struct_fields__ if name != "max_tokens")


@dataclass(frozen=True, slots=True)
class ModelText:
    """A model's side of the text: how its prompts become ids, and what its author recommends."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    encoder: EncoderText | None = None
    """None: a language model."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request whose prompt is ids, all of them inside the vocabulary."""

    request_id: str
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    tokenizer: Tokenizer
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""


def prepare_prompt(text: ModelText, prompt: Prompt) -> list[int]:
    """The ids of `prompt`: blocks for as long as tokenising takes. Raises InvalidRequest, TemplateRefused."""
    if isinstance(prompt, TextPrompt):
        return text.tokenizer.encode(
            prompt.text, add_special_tokens=prompt.add_special_tokens, parse_special=prompt.parse_special
        )
    if isinstance(prompt, ChatPrompt):
        if text.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template: give one with --chat-template, or send a plain prompt",
                param="messages",
            )
        reserved = sorted(prompt.template_kwargs.keys() & _RENDER_ARGUMENTS)
        if reserved:
            raise InvalidRequest(
                f"the chat template can not be given {reserved[0]!r}: it has a field of its own", param=reserved[0]
            )
        rendered = text.chat_template.render(
            prompt.messages,
            tools=prompt.tools,
            add_generation_prompt=prompt.add_generation_prompt,
            **prompt.template_kwargs,
        )
        return text.tokenizer.encode_rendered(rendered)
    text.tokenizer.check_ids(prompt.token_ids, "prompt")
    return list(prompt.token_ids)


async def tokenize_prompt(text: ModelText, prompt: Prompt) -> list[int]:
    """prepare_prompt, in a thread if the text is long."""
    if num_characters(prompt) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(prepare_prompt, text, prompt)
    return prepare_prompt(text, prompt)


def check_generates(text: ModelText) -> None:
    """Raises UnsupportedFeature for an encoder, which makes no text."""
    if text.encoder is not None:
        does = "scores pairs of texts (/v1/rerank, /v1/score)" if text.encoder.reads_pairs else "makes /v1/embeddings"
        raise UnsupportedFeature(f"this model is an encoder and generates no text; it {does}", param="model")


async def prepare_request(text: ModelText, request: GenerateRequest) -> PreparedRequest:
    """The request with ids for its prompt. Raises as check_generates, tokenize_prompt and check_request."""
    check_generates(text)
    return check_request(text, request, await tokenize_prompt(text, request.prompt))


def check_request(text: ModelText, request: GenerateRequest, token_ids: Sequence[int]) -> PreparedRequest:
    """The request with its ids. Raises InvalidRequest for an empty prompt and for ids that the model has not."""
    if not token_ids:
        raise InvalidRequest("the prompt is empty: it needs at least one token", param="prompt")
    sampling = request.sampling
    text.tokenizer.check_ids(sorted(sampling.logit_bias), "logit_bias")
    text.tokenizer.check_ids(sampling.stop_token_ids, "stop_token_ids")
    return PreparedRequest(
        request.request_id,
        request.model,
        tuple(token_ids),
        sampling,
        text.tokenizer,
        request.priority,
        request.tenant,
        request.cache_salt,
    )


def complete_sampling(sampling: SamplingParams, *, num_prompt_tokens: int, max_model_len: int | None) -> wire.Sampling:
    """What the worker has to know, with max_tokens filled: the rest of the context where the request has none.

    Raises ContextLengthExceeded with both numbers. `max_model_len` None: the model has no such limit.
    """
    max_tokens = sampling.max_tokens
    if max_model_len is not None:
        rest = max_model_len - num_prompt_tokens
        if rest < 1:
            raise ContextLengthExceeded(
                f"the prompt has {num_prompt_tokens} tokens, and the context of this model is {max_model_len} tokens"
                " for prompt and output together: shorten the prompt",
                param="prompt",
            )
        if max_tokens is None:
            max_tokens = rest
        elif max_tokens > rest:
            raise ContextLengthExceeded(
                f"the prompt's {num_prompt_tokens} tokens and max_tokens {max_tokens} are"
                f" {num_prompt_tokens + max_tokens} tokens, and the context of this model is {max_model_len} tokens:"
                f" lower max_tokens to {rest} or shorten the prompt",
                param="max_tokens",
            )
    fields = {name: getattr(sampling, name) for name in _WIRE_FIELDS}
    return wire.Sampling(max_tokens=max_tokens, **fields)


def num_characters(value: Prompt | Mapping[str, Any] | Iterable[Any] | Any) -> int:
    """Characters in all strings of a prompt, or its ids: what preparing it will cost, roughly."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, TextPrompt):
        return len(value.text)
    if isinstance(value, TokensPrompt):
        return len(value.token_ids)
    if isinstance(value, ChatPrompt):
        return num_characters(value.messages) + num_characters(value.tools)
    if isinstance(value, Mapping):
        return sum(num_characters(inner) for inner in value.values())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return sum(num_characters(inner) for inner in value)
    return 0


__all__ = [
    "LONG_TEXT_CHARACTERS",
    "ModelText",
    "PreparedRequest",
    "complete_sampling",
    "num_characters",
    "prepare_prompt",
    "prepare_request",
    "tokenize_prompt",
]
