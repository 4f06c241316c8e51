"""What goes over the wire on OpenAI's routes: request bodies (pydantic, strict) and answers (msgspec, fast)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, WithJsonSchema

from headway.server.body import Body, ModelName, Refusal
from headway.server.sampling import SAMPLING_REFUSED, SamplingBody
from headway.server.structured import ResponseFormat

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

_OLD_FUNCTIONS = "OpenAI replaced it: send tools and tool_choice"

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
    "function_call": Refusal(_OLD_FUNCTIONS),
    "functions": Refusal(_OLD_FUNCTIONS),
    "modalities": Refusal("answers are text", (["text"],)),
    "reasoning": Refusal("send chat_template_kwargs, reasoning_effort none or thinking_token_budget"),
    "web_search_options": Refusal("there is no web search"),
}

COMPLETION_REFUSED: Mapping[str, Refusal] = {
    **_REFUSED,
    "prompt_embeds": Refusal("send text or token ids"),
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
    tool_calls: Any = Field(None, description="An assistant's: [{id, type: function, function: {name, arguments}}].")
    tool_call_id: str | None = Field(None, description="Of role tool: the call whose result this is.")
    reasoning_content: Any = Field(None, description="An assistant's, for templates that show it again.")
    reasoning: Any = Field(None, description="The same by another name.")


class GenerateBody(SamplingBody):
    """What chat and completions share."""

    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED - {"user"}

    model: ModelName
    user: str | None = Field(None, description="Who shares with others, with --scheduling-policy fair.", max_length=256)
    response_format: ResponseFormat | None = None
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
    tools: list[dict[str, Any]] | None = Field(
        None, description="Functions: [{type: function, function: {name, description, parameters, strict}}]."
    )
    tool_choice: Any = Field(None, description="auto, none, required, a function by its name, or allowed_tools.")
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most.")
    include_reasoning: bool | None = Field(None, description="false: reasoning is not told (as vLLM).")
    reasoning_effort: str | None = Field(None, description="none: the model does not reason.")
    thinking_token_budget: int | None = Field(None, description="Reasoning ends within so many tokens (as vLLM).")


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


class OutputTokens(msgspec.Struct, frozen=True):
    """Of the output, the tokens of its reasoning, and those that a grammar left no choice about."""

    reasoning_tokens: int
    forced_tokens: int


class UsageOut(msgspec.Struct, frozen=True):
    """Tokens; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: OutputTokens


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


class FunctionOut(msgspec.Struct, frozen=True):
    """The function of a call; in chunks the name comes once."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallOut(msgspec.Struct, frozen=True):
    """A call, whole, or as a part of a chunk: then it has an index, and in its first part alone an id and a type."""

    function: FunctionOut
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class MessageOut(msgspec.Struct, frozen=True):
    """The assistant's message. content is null where there are only calls, or only reasoning."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


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
    state: str = "cold"
    """cold, loading, ready or failed: a cold one is loaded when it is asked for."""
    kind: str = "model"
    """What the id is: model, alias or preset."""
    parent: str | None = None
    """Of an alias or preset: the model that answers."""
    type: str = "text-generation"
    framework: str = "headway"
    version: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    memory_bytes: int | None = None
    """Measured while it is resident, else expected."""
    over_limit_bytes: int | UnsetType = UNSET
    """Of that, what is over the limit: no other model is loaded until this one leaves."""
    is_pinned: bool = False
    error: str | UnsetType = UNSET
    """Why it failed last."""
    retry_after_s: float | UnsetType = UNSET
    """When a failed one is loaded again at the next request."""
    update_error: str | UnsetType = UNSET
    """Why what is new in its watched source is not served."""


class ModelList(msgspec.Struct, frozen=True):
    """GET /v1/models."""

    data: list[ModelOut]
    object: str = "list"
