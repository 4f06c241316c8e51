"""What goes over the wire on OpenAI's routes: request bodies (pydantic, strict) and answers (msgspec, fast)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, WithJsonSchema

from headway.server.body import Body, ModelName, Refusal
from headway.server.sampling import SAMPLING_REFUSED, SamplingBody

OPENAI_IGNORED = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""OpenAI's fields that are taken and change nothing in an answer."""

_NO_TOOLS = "tool calls are not there yet: leave it out"

_REFUSED: Mapping[str, Refusal] = {
    **SAMPLING_REFUSED,
    "request_id": Refusal("send the header X-Request-Id"),
    "return_tokens_as_token_ids": Refusal("ask for return_token_ids", (False,)),
    "logits_processors": Refusal("code is not taken from requests", ([],)),
}

CHAT_REFUSED: Mapping[str, Refusal] = {
    **_REFUSED,
    "audio": Refusal("answers are text"),
    "chat_template": Refusal("the server chooses the template (--chat-template)"),
    "documents": Refusal("write them into a message", ([],)),
    "function_call": Refusal(_NO_TOOLS),
    "functions": Refusal(_NO_TOOLS),
    "include_reasoning": Refusal("reasoning is not split from the text yet"),
    "modalities": Refusal("answers are text", (["text"],)),
    "parallel_tool_calls": Refusal(_NO_TOOLS),
    "reasoning": Refusal("reasoning is not split from the text yet"),
    "reasoning_effort": Refusal("no model here takes it"),
    "response_format": Refusal("structured output is not there yet: ask for text", ({"type": "text"},)),
    "tool_choice": Refusal(_NO_TOOLS),
    "tools": Refusal(_NO_TOOLS),
    "web_search_options": Refusal("there is no web search"),
}

COMPLETION_REFUSED: Mapping[str, Refusal] = {
    **_REFUSED,
    "prompt_embeds": Refusal("send text or token ids"),
    "response_format": Refusal("structured output is not there yet: ask for text", ({"type": "text"},)),
    "suffix": Refusal("there is no fill-in-the-middle", ("",)),
}


class StreamOptions(Body):
    """What a stream tells beside its text."""

    include_usage: bool | None = None
    """One more chunk, before [DONE], with choices [] and the usage."""
    continuous_usage_stats: bool | None = None
    """Refused if true: usage comes once, at the end."""
    include_obfuscation: bool | None = None
    """OpenAI's padding against traffic analysis: taken and not done."""


class ChatMessage(Body):
    """One message. Fields that the answer of an OpenAI client carries back empty are taken if they are empty."""

    role: str
    content: Any = Field(None, description="A string, or a list of {type: text, text}.")
    name: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class GenerateBody(SamplingBody):
    """What chat and completions share."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED - {"user"}

    model: ModelName
    user: str | None = Field(None, description="Who shares with others, with --scheduling-policy fair.", max_length=256)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = Field(None, description="Each choice also has its token_ids (as vLLM).")
    prompt_logprobs: int | None = Field(
        None, description="Log-probabilities of the prompt's tokens, with the k likeliest (as vLLM); no stream."
    )
    echo: bool | None = Field(None, description="The text begins with the prompt, in chat with the message continued.")


class ChatBody(GenerateBody):
    """POST /v1/chat/completions."""

    refused: ClassVar[Mapping[str, Refusal]] = CHAT_REFUSED

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="The output goes on with the last message, which is the assistant's."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="enable_thinking, and other switches that the model's chat template knows."
    )


Prompts = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    ),
]


class CompletionBody(GenerateBody):
    """POST /v1/completions."""

    refused: ClassVar[Mapping[str, Refusal]] = COMPLETION_REFUSED

    prompt: Prompts
    logprobs: int | None = None
    add_special_tokens: bool | None = None


# Answers


class CachedTokens(msgspec.Struct, frozen=True):
    """Of the prompt, the tokens that were not computed again."""

    cached_tokens: int


class UsageOut(msgspec.Struct, frozen=True):
    """Tokens; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TokenLogprobOut(msgspec.Struct, frozen=True):
    """One candidate at one position of a chat answer; bytes are the token's raw ones."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprobOut(msgspec.Struct, frozen=True):
    """The chosen token at one position, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenLogprobOut]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Chat's shape of logprobs."""

    content: list[ContentLogprobOut]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Completions' shape of logprobs: one entry a token in each list; null for a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    """Characters of the choice's text before the token."""


class PromptLogprobOut(msgspec.Struct, frozen=True):
    """vLLM's shape: one candidate at one position of a prompt."""

    logprob: float
    rank: int | None
    """1: the likeliest; null where it is behind those that were asked for."""
    decoded_token: str


PromptLogprobsOut = list[dict[str, PromptLogprobOut] | None]
"""By token id, one a token; null for the first."""


class MessageOut(msgspec.Struct, frozen=True):
    """The assistant's message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole choice."""

    index: int
    message: MessageOut
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice, whole or as a part of a chunk: completions have one shape for both."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsOut | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True):
    """chat.completion, chat.completion.chunk and text_completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[CompletionChoice]
    usage: UsageOut | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsOut | UnsetType = UNSET
    """Of a chat; completions have them in each choice."""


class ModelOut(msgspec.Struct, frozen=True):
    """A served model."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "headway"


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelOut]
    object: str = "list"
