"""What goes over the wire on Anthropic's routes: request bodies (pydantic, strict) and answers (msgspec, fast)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from headway.server.body import Body, ModelName, Refusal

IGNORED = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "cache_control",
        "diagnostics",
        "inference_geo",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Anthropic's fields that are taken and change nothing in an answer."""

REFUSED: Mapping[str, Refusal] = {
    "compaction": Refusal("shorten the messages yourself"),
    "container": Refusal("there is no code execution"),
    "fallbacks": Refusal("the model that is named answers", ([],)),
    "mcp_servers": Refusal("give their tools in tools, and call the servers yourself", ([],)),
    "thread": Refusal("send all messages"),
}


class MessageIn(Body):
    """One message."""

    role: str
    content: Any = Field(description="A string, or blocks: text, tool_use, tool_result, thinking, redacted_thinking.")


class ToolChoice(Body):
    """How the tools are used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="With type tool: the one that must be called.")
    disable_parallel_tool_use: bool | None = Field(None, description="true: one call at most.")


class Thinking(Body):
    """Whether the model reasons first. Left out, it does not, where its template has the switch."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, description="With type enabled: reasoning ends within so many tokens.")
    display: Literal["summarized", "omitted"] | None = Field(None, description="omitted: its text is not told.")


class OutputFormat(Body):
    """A JSON schema that the answer matches."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How the answer looks."""

    effort: str | None = Field(None, description="Taken: models here have no such dial.")
    format: OutputFormat | None = None


class ContextManagement(Body):
    """What is left out of long conversations."""

    edits: list[dict[str, Any]] | None = Field(
        None, description="Only clear_thinking_*: what of earlier thinking is shown, the model's template decides."
    )


class Metadata(Body):
    """About the request."""

    user_id: str | None = Field(
        None, description="Who shares with others, with --scheduling-policy fair.", max_length=256
    )


class CountTokensBody(Body):
    """POST /v1/messages/count_tokens: what a prompt is made of."""

    ignored: ClassVar[frozenset[str]] = IGNORED
    refused: ClassVar[Mapping[str, Refusal]] = REFUSED

    model: ModelName
    messages: list[MessageIn]
    system: Any = Field(None, description="A string, or text blocks.")
    tools: list[dict[str, Any]] | None = Field(None, description="[{name, description, input_schema, strict}].")
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="As output_config.format, its name before.")
    context_management: ContextManagement | None = None


class MessagesBody(CountTokensBody):
    """POST /v1/messages."""

    max_tokens: int = Field(description="What the context has no room for is left out of it.")
    metadata: Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


# Answers


class OutputTokens(msgspec.Struct, frozen=True):
    """Of the output, the tokens of its thinking."""

    thinking_tokens: int


class UsageOut(msgspec.Struct, frozen=True):
    """Tokens. The prompt's are input_tokens and cache_read_input_tokens together: each is in one of them."""

    input_tokens: int
    """Computed."""
    cache_read_input_tokens: int
    """Taken from the KV cache."""
    output_tokens: int
    output_tokens_details: OutputTokens
    cache_creation_input_tokens: int = 0
    """Nothing is written for a price: the cache keeps every prompt."""


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Its reasoning."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: msgspec.Raw | dict[str, Any]
    """An object; in a whole answer the text that the model wrote."""


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageOut(msgspec.Struct, frozen=True):
    """An answer, and what a stream begins with."""

    id: str
    model: str
    content: list[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: UsageOut
    type: str = "message"
    role: str = "assistant"


class TokenCount(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int
