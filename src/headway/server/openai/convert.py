"""OpenAI's bodies to GenerateRequests, valid by construction. The only file that knows both."""

from collections.abc import Mapping
from dataclasses import replace
from secrets import token_hex
from typing import Any, Literal, Protocol

from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import MAX_LOGPROBS, SamplingParams
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe
from headway.server.openai.messages import chat_messages
from headway.server.openai.schema import ChatBody, ChatMessage, CompletionBody, GenerateBody
from headway.server.sampling import to_sampling, usual_max_tokens
from headway.server.tools import read_tool_use, read_tools

MAX_PROMPTS = 2048
"""Prompts in one request."""
MAX_CHOICES = 4096
"""Prompts times n."""
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default on /v1/completions; chat's is the rest of the context."""


def chat_request(body: ChatBody, defaults: Mapping[str, Any]) -> GenerateRequest:
    """The one request behind a chat body. Raises InvalidRequest."""
    _check_common(body)
    max_tokens, name = _chat_max_tokens(body)
    sampling = _with_name(
        lambda: to_sampling(
            body,
            defaults,
            max_tokens=max_tokens,
            logprobs=_chat_logprobs(body),
            prompt_logprobs=body.prompt_logprobs,
            response_format=body.response_format,
            thinking_token_budget=body.thinking_token_budget,
        ),
        name,
    )
    prompt = chat_prompt(body)
    if body.echo and not prompt.continue_final_message:
        raise InvalidRequest("echo in a chat needs continue_final_message: true", param="echo")
    request = _request(body, f"chatcmpl-{token_hex(16)}", prompt, sampling)
    return replace(request, tool_use=read_tool_use(prompt.tools or (), body.tool_choice, body.parallel_tool_calls))


class TemplateBody(Protocol):
    """What a body says of how its messages are rendered."""

    @property
    def messages(self) -> list[ChatMessage] | None: ...

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool | None: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...

    @property
    def tools(self) -> list[dict[str, Any]] | None: ...


def chat_prompt(body: TemplateBody) -> ChatPrompt:
    """The messages and how to render them. Raises InvalidRequest."""
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other: set one of them",
            param="continue_final_message",
        )
    is_asked = not continues and body.add_generation_prompt is not False
    return ChatPrompt(
        chat_messages(body.messages or [], may_end_open=not continues and not is_asked),
        read_tools(body.tools or []) or None,
        add_generation_prompt=is_asked,
        template_kwargs=_template_kwargs(body),
        continue_final_message=continues,
    )


def _template_kwargs(body: TemplateBody) -> dict[str, Any]:
    effort = body.reasoning_effort if isinstance(body, ChatBody) else None
    return effort_kwargs(effort, body.chat_template_kwargs or {}, "reasoning_effort")


def effort_kwargs(effort: str | None, given: dict[str, Any], param: str) -> dict[str, Any]:
    """The template's switches that were given; an effort of none is enable_thinking false. Raises InvalidRequest."""
    if effort is None:
        return given
    if effort != "none":
        raise UnsupportedFeature(
            f"{param} must be none, which turns reasoning off: else leave it out, and limit reasoning by "
            "thinking_token_budget",
            param=param,
        )
    if given.get("enable_thinking"):
        raise InvalidRequest(
            f"{param} is none and chat_template_kwargs.enable_thinking true: give one of them", param=param
        )
    return given | {"enable_thinking": False}


def _request(body: GenerateBody, request_id: str, prompt: Prompt, sampling: SamplingParams) -> GenerateRequest:
    return GenerateRequest(
        request_id,
        body.model,
        prompt,
        sampling,
        priority=body.priority or 0,
        tenant=body.user or "",
        cache_salt=body.cache_salt or "",
    )


def completion_requests(body: CompletionBody, defaults: Mapping[str, Any]) -> list[GenerateRequest]:
    """One request a prompt, in order; their ids share what is before the last dash. Raises InvalidRequest."""
    _check_common(body)
    max_tokens = usual_max_tokens(body, defaults, COMPLETION_MAX_TOKENS)
    sampling = to_sampling(
        body,
        defaults,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=_prompt_logprobs(body),
        response_format=body.response_format,
    )
    prompts = to_prompts(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    check_num_choices(len(prompts), sampling.n)
    base = f"cmpl-{token_hex(16)}"
    return [_request(body, f"{base}-{i}", prompt, sampling) for i, prompt in enumerate(prompts)]


def _prompt_logprobs(body: CompletionBody) -> int | None:
    """What is asked for by name, or by the echo of a prompt with logprobs, or of a prompt alone."""
    wanted = [body.prompt_logprobs]
    if body.echo:
        wanted += [body.logprobs, 0 if body.max_tokens == 0 else None]
    return max((each for each in wanted if each is not None), default=None)


def to_prompts(value: object, *, add_special_tokens: bool = True, param: str = "prompt") -> list[Prompt]:
    """Text, texts, token ids or lists of token ids. Raises InvalidRequest.

    An empty text is the model's own special tokens alone; the service refuses it where there are none.
    """
    if isinstance(value, str):
        return [TextPrompt(value, add_special_tokens)]
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{param} is {describe(value)}; it must be text, token ids, or a list of such", param=param
        )
    if not value:
        raise InvalidRequest(f"{param} is an empty list; it must hold at least one prompt or token id", param=param)
    if all(type(item) is int for item in value):
        return [TokensPrompt(value)]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(
            f"{param} has {len(value)} prompts, at most {MAX_PROMPTS}: send several requests", param=param
        )
    if all(isinstance(item, str) for item in value):
        return [TextPrompt(item, add_special_tokens) for item in value]
    if all(isinstance(item, list) and all(type(token) is int for token in item) for item in value):
        if not all(value):
            raise InvalidRequest(f"{param} has an empty list of token ids; each needs at least one", param=param)
        return [TokensPrompt(item) for item in value]
    raise InvalidRequest(f"{param} is a mixed list; all of it must be texts, token ids, or lists of ids", param=param)


def check_num_choices(num_prompts: int, n: int) -> None:
    """Raises InvalidRequest if one HTTP request asks for more sequences than MAX_CHOICES."""
    if num_prompts * n > MAX_CHOICES:
        raise InvalidRequest(
            f"{num_prompts} prompts with n {n} are {num_prompts * n} choices, at most {MAX_CHOICES}: send fewer",
            param="n",
        )


def _check_common(body: GenerateBody) -> None:
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs are not told in a stream: leave stream out", param="prompt_logprobs")
    options = body.stream_options
    if options is None:
        return
    if not body.stream:
        raise InvalidRequest("stream_options is only for stream: true", param="stream_options")
    if options.continuous_usage_stats:
        raise UnsupportedFeature(
            "stream_options.continuous_usage_stats is not supported: include_usage tells it once, at the end",
            param="stream_options.continuous_usage_stats",
        )


MaxTokensName = Literal["max_tokens", "max_completion_tokens"]


def _chat_max_tokens(body: ChatBody) -> tuple[int | None, MaxTokensName]:
    """Both names mean the same; both at once must say the same. A chat has an output of a token at least."""
    for name in ("max_tokens", "max_completion_tokens"):
        if getattr(body, name) == 0:
            raise InvalidRequest(f"{name} is 0; it must be at least 1", param=name)
    if body.max_completion_tokens is None:
        return body.max_tokens, "max_tokens"
    if body.max_tokens is not None and body.max_tokens != body.max_completion_tokens:
        raise InvalidRequest(
            f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens}: give one of them",
            param="max_tokens",
        )
    return body.max_completion_tokens, "max_completion_tokens"


def _with_name(make: Any, name: MaxTokensName) -> SamplingParams:
    """make(), whose errors about max_tokens are told by the name that the caller used."""
    try:
        sampling: SamplingParams = make()
    except InvalidRequest as error:
        if error.param == "max_tokens" and name != "max_tokens":
            raise InvalidRequest(error.message.replace("max_tokens", name, 1), param=name) from None
        raise
    return sampling


def _chat_logprobs(body: ChatBody) -> int | None:
    """SamplingParams.logprobs from chat's pair of fields."""
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {top}; it must be at least 0 and at most {MAX_LOGPROBS}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (top or 0) if body.logprobs else None
