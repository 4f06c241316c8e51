"""OpenAI's bodies to GenerateRequests, valid by construction. The only file that knows both."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from headway.core.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokensPrompt
from headway.core.sampling import MAX_LOGPROBS, SamplingParams
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe
from headway.server.openai.schema import ChatBody, ChatMessage, CompletionBody, GenerateBody
from headway.server.sampling import to_sampling

MAX_PROMPTS = 2048
"""Prompts in one request."""
MAX_CHOICES = 4096
"""Prompts times n."""
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default on /v1/completions; chat's is the rest of the context."""

_ROLES = ("system", "developer", "user", "assistant")


def chat_request(body: ChatBody, defaults: Mapping[str, Any]) -> GenerateRequest:
    """The one request behind a chat body. Raises InvalidRequest."""
    _check_common(body)
    max_tokens, name = _chat_max_tokens(body)
    sampling = _with_name(
        lambda: to_sampling(body, defaults, max_tokens=max_tokens, logprobs=_chat_logprobs(body)), name
    )
    prompt = ChatPrompt(
        chat_messages(body.messages),
        add_generation_prompt=True if body.add_generation_prompt is None else body.add_generation_prompt,
    )
    return GenerateRequest(f"chatcmpl-{uuid4().hex}", body.model, prompt, sampling)


def completion_requests(body: CompletionBody, defaults: Mapping[str, Any]) -> list[GenerateRequest]:
    """One request a prompt, in order; their ids share what is before the last dash. Raises InvalidRequest."""
    _check_common(body)
    max_tokens = COMPLETION_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling = to_sampling(body, defaults, max_tokens=max_tokens, logprobs=body.logprobs)
    prompts = to_prompts(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    check_num_choices(len(prompts), sampling.n)
    base = f"cmpl-{uuid4().hex}"
    return [GenerateRequest(f"{base}-{i}", body.model, prompt, sampling) for i, prompt in enumerate(prompts)]


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


def chat_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates know them: role, content as one text, name. Raises InvalidRequest.

    developer is told as system; text parts are joined by a line feed.
    """
    if not messages:
        raise InvalidRequest("messages is an empty list; at least one message is needed", param="messages")
    return [_chat_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _chat_message(message: ChatMessage, path: str) -> dict[str, Any]:
    if message.role in ("tool", "function"):
        raise UnsupportedFeature(f"{path}.role is {message.role}: tool calls are not there yet", param=f"{path}.role")
    if message.role not in _ROLES:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    for name in _CARRIED_BACK:
        if getattr(message, name):
            raise UnsupportedFeature(f"{path}.{name} is not supported: leave it out", param=f"{path}.{name}")
    content = _content(message.content, f"{path}.content", may_be_none=message.role == "assistant")
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content} | ({} if message.name is None else {"name": message.name})


_CARRIED_BACK = tuple(name for name in ChatMessage.model_fields if name not in ("role", "content", "name"))


def _content(content: object, path: str, *, may_be_none: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_none:
        return ""
    if not isinstance(content, list) or not content:
        what = "an empty list" if content == [] else describe(content)
        raise InvalidRequest(f"{path} is {what}; it must be text or a list of text parts", param=path)
    return "\n".join(_text_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _text_part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise InvalidRequest(f"{path} is {describe(part)}; it must be an object with a type", param=path)
    if kind not in ("text", "input_text"):
        raise UnsupportedFeature(f"{path}.type must be text: the served models read nothing else", param=f"{path}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.text is {describe(text)}; it must be a string", param=f"{path}.text")
    return text


def _check_common(body: GenerateBody) -> None:
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
    """Both names mean the same; both at once must say the same."""
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
