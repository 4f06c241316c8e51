"""From a request's prompt to what is submitted: text to token ids, and the checks that need the model.

Called by service/local and by the offline LLM. Pure but for the thread that long texts are tokenised in.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

import headway_wire as wire
from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import FIT, SamplingParams
from headway.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature
from headway.text.chat_template import ChatTemplate
from headway.text.rendered import RenderedPrompt
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls import Dialect
from headway.text.tool_texts import with_tool_texts
from headway.worker.constraining import OutputForm, OutputStyle, choose_constraint, choose_form
from headway.worker.encoder_text import EncoderText

LONG_TEXT_CHARACTERS = 16 * 1024
"""A longer prompt is tokenised in a thread, so that the event loop goes on."""

_CONTINUES_HERE = "zqcontinuesherezq"
"""Written behind a message that is to be continued; the template's text from here on is left out."""
_RENDER_ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt"})


@dataclass(frozen=True, slots=True)
class ModelText:
    """A model's side of the text: how its prompts become ids, and what its author recommends."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None = None
    generation_defaults: Mapping[str, Any] = field(default_factory=dict)
    encoder: EncoderText | None = None
    """None: a language model."""
    output: OutputStyle = field(default_factory=OutputStyle)
    """How its outputs are read and constrained."""


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
    prompt_text: str | None = None
    """As the caller gave it, where that is what the ids say."""
    output: OutputForm | None = None
    """How its outputs are read; None: as text."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt's ids, and the text that a chat's template made."""

    token_ids: list[int]
    rendered: str = ""


def read_prompt(text: ModelText, prompt: Prompt) -> ReadPrompt:
    """The ids of `prompt`: blocks for as long as tokenising takes. Raises InvalidRequest, TemplateRefused."""
    if isinstance(prompt, TextPrompt):
        return ReadPrompt(
            text.tokenizer.encode(
                prompt.text, add_special_tokens=prompt.add_special_tokens, parse_special=prompt.parse_special
            )
        )
    if isinstance(prompt, ChatPrompt):
        if text.chat_template is None:
            raise InvalidRequest(
                "this model has no chat template: give one with --chat-template, or send a plain prompt",
                param="messages",
            )
        rendered = _render_chat(text.chat_template, prompt, text.output.dialect)
        return ReadPrompt(text.tokenizer.encode_rendered(rendered), rendered.text)
    text.tokenizer.check_ids(prompt.token_ids, "prompt")
    return ReadPrompt(list(prompt.token_ids))


def _render_chat(template: ChatTemplate, prompt: ChatPrompt, dialect: Dialect | None) -> RenderedPrompt:
    switches = {**prompt.usual_kwargs, **prompt.template_kwargs}
    _check_switches(template, switches)
    continues = prompt.continue_final_message
    messages = _with_mark(prompt.messages) if continues else prompt.messages
    if dialect is not None and (prompt.tools or any(message.get("tool_calls") for message in messages)):
        messages = with_tool_texts(messages, prompt.tools or (), dialect, template.forms)
    rendered = template.render(
        messages,
        tools=None if prompt.tools is None else [_shown_tool(tool) for tool in prompt.tools],
        add_generation_prompt=prompt.add_generation_prompt and not continues,
        **switches,
    )
    return _up_to_mark(rendered) if continues else rendered


def _shown_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without `strict`, which says how a call is checked, and which no model has learned to read."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    return {**tool, "function": {name: value for name, value in function.items() if name != "strict"}}


def _check_switches(template: ChatTemplate, given: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what has a field of its own, and for what the template does not ask for."""
    reserved = sorted(given.keys() & _RENDER_ARGUMENTS)
    if reserved:
        raise InvalidRequest(
            f"the chat template can not be given {reserved[0]!r}: it has a field of its own",
            param="chat_template_kwargs",
        )
    unknown = sorted(given.keys() - template.switches)
    if unknown:
        raise InvalidRequest(
            f"chat_template_kwargs has {unknown[0][:64]!r}, which this model's template does not take; it takes "
            f"{', '.join(sorted(template.switches))}",
            param="chat_template_kwargs",
        )


def _with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or not isinstance(content, str):
        raise InvalidRequest(
            "continue_final_message needs a last message of the assistant with a text to go on from",
            param="continue_final_message",
        )
    return [*messages[:-1], {**last, "content": content + _CONTINUES_HERE}]


def _up_to_mark(rendered: RenderedPrompt) -> RenderedPrompt:
    end = rendered.text.rfind(_CONTINUES_HERE)
    if end < 0:
        raise InvalidRequest(
            "continue_final_message: the model's chat template leaves the last message out or changes it",
            param="continue_final_message",
        )
    protected = tuple((start, min(stop, end)) for start, stop in rendered.protected if start < end)
    return RenderedPrompt(rendered.text[:end], protected)


async def tokenize_prompt(text: ModelText, prompt: Prompt) -> ReadPrompt:
    """read_prompt, in a thread if the text is long."""
    if num_characters(prompt) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(read_prompt, text, prompt)
    return read_prompt(text, prompt)


def check_generates(text: ModelText) -> None:
    """Raises UnsupportedFeature for an encoder, which makes no text."""
    if text.encoder is not None:
        does = "scores pairs of texts (/v1/rerank, /v1/score)" if text.encoder.reads_pairs else "makes /v1/embeddings"
        raise UnsupportedFeature(f"this model is an encoder and generates no text; it {does}", param="model")


async def prepare_request(text: ModelText, request: GenerateRequest) -> PreparedRequest:
    """The request with ids for its prompt. Raises as check_generates, tokenize_prompt and check_request."""
    check_generates(text)
    return check_request(text, request, await tokenize_prompt(text, request.prompt))


def check_request(text: ModelText, request: GenerateRequest, read: ReadPrompt) -> PreparedRequest:
    """The request with its ids, what constrains its outputs and how they are read.

    Raises InvalidRequest for an empty prompt, for ids that the model has not, and as choose_constraint().
    """
    if not read.token_ids:
        raise InvalidRequest("the prompt is empty: it needs at least one token", param="prompt")
    sampling = request.sampling
    text.tokenizer.check_ids(sorted(sampling.logit_bias), "logit_bias")
    text.tokenizer.check_ids(sampling.stop_token_ids, "stop_token_ids")
    text.tokenizer.check_ids(sampling.allowed_token_ids or (), "allowed_token_ids")
    if sampling.bad_words:
        bad = [*sampling.bad_token_ids, *_bad_token_ids(text.tokenizer, sampling.bad_words)]
        sampling = msgspec.structs.replace(sampling, bad_token_ids=bad)
    constraint = choose_constraint(text.output, request, read.rendered)
    if constraint is not sampling.constraint:
        sampling = msgspec.structs.replace(sampling, constraint=constraint)
    prompt = request.prompt
    return PreparedRequest(
        request.request_id,
        request.model,
        tuple(read.token_ids),
        sampling,
        text.tokenizer,
        request.priority,
        request.tenant,
        request.cache_salt,
        prompt.text if isinstance(prompt, TextPrompt) else None,
        choose_form(text.output, request, read.rendered),
    )


def _bad_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Each text as it is spelled at the beginning of a text and behind a space, as vLLM has it."""
    spelled = {
        tuple(tokenizer.encode(before + word.lstrip(" "), add_special_tokens=False)): None
        for word in words
        for before in ("", " ")
    }
    return [list(ids) for ids in spelled if ids]


def fit_prompt(request: PreparedRequest, max_model_len: int | None) -> PreparedRequest:
    """The request with its prompt cut as truncate_prompt_tokens says: the last tokens stay, and a BOS before them."""
    sampling, ids = request.sampling, request.prompt_token_ids
    limit = sampling.truncate_prompt_tokens
    if limit == FIT:
        limits = [most for most in (max_model_len, sampling.max_length) if most is not None]
        limit = min(limits) - (1 if sampling.max_tokens is None else sampling.max_tokens) if limits else None
    if limit is None or not 1 <= limit < len(ids):
        return request
    keeps_first = limit > 1 and ids[0] == request.tokenizer.bos_token_id
    kept = (ids[0], *ids[len(ids) - limit + 1 :]) if keeps_first else ids[len(ids) - limit :]
    return replace(request, prompt_token_ids=kept, prompt_text=None)


def complete_sampling(sampling: SamplingParams, *, num_prompt_tokens: int, max_model_len: int | None) -> wire.Sampling:
    """What the worker has to know, with max_tokens filled: the rest of the context where the request has none, or more
    and may have less.

    Raises ContextLengthExceeded with both numbers. `max_model_len` None: the model has no such limit.
    """
    max_tokens = _room_in_length(sampling, num_prompt_tokens)
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
        elif sampling.max_tokens is None or sampling.lowers_max_tokens:
            max_tokens = min(max_tokens, rest)
        elif max_tokens > rest:
            raise ContextLengthExceeded(
                f"the prompt's {num_prompt_tokens} tokens and max_tokens {max_tokens} are"
                f" {num_prompt_tokens + max_tokens} tokens, and the context of this model is {max_model_len} tokens:"
                f" lower max_tokens to {rest} or shorten the prompt",
                param="max_tokens",
            )
    if sampling.max_length is not None and max_tokens is not None and sampling.min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens}, and max_length {sampling.max_length} and the context leave "
            f"{max_tokens} behind the prompt's {num_prompt_tokens}: lower min_tokens or raise max_length",
            param="min_tokens",
        )
    sent = msgspec.convert(sampling, wire.Sampling, from_attributes=True)
    return sent if max_tokens == sampling.max_tokens else msgspec.structs.replace(sent, max_tokens=max_tokens)


def _room_in_length(sampling: SamplingParams, num_prompt_tokens: int) -> int | None:
    """The smaller of max_tokens and what max_length leaves for them; None: neither was given."""
    if sampling.max_length is None:
        return sampling.max_tokens
    room = sampling.max_length - num_prompt_tokens
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens and max_length is {sampling.max_length} for prompt and output "
            "together: raise it or shorten the prompt",
            param="max_length",
        )
    return room if sampling.max_tokens is None else min(room, sampling.max_tokens)


def num_characters(value: Prompt | Mapping[str, Any] | Iterable[Any] | Any) -> int:
    """Characters in all strings of a prompt, or its ids: what preparing it will cost, roughly. Without recursion, for a
    caller chooses the depth."""
    total, waiting = 0, [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, str):
            total += len(inner)
        elif isinstance(inner, TextPrompt):
            total += len(inner.text)
        elif isinstance(inner, TokensPrompt):
            total += len(inner.token_ids)
        elif isinstance(inner, ChatPrompt):
            waiting += inner.messages, inner.tools
        elif isinstance(inner, Mapping):
            waiting += inner.values()
        elif isinstance(inner, Sequence) and not isinstance(inner, bytes):
            waiting += inner
    return total


__all__ = [
    "LONG_TEXT_CHARACTERS",
    "ModelText",
    "PreparedRequest",
    "ReadPrompt",
    "complete_sampling",
    "fit_prompt",
    "num_characters",
    "prepare_request",
    "read_prompt",
    "tokenize_prompt",
]
