"""What goes over the wire on /v1/responses: the body (pydantic, strict), the items, and the response (msgspec)."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import ConfigDict, Field, WithJsonSchema

from headway.server.body import Body, ModelName, Refusal
from headway.server.openai.schema import OPENAI_IGNORED, ContentLogprobOut, OutputTokens
from headway.server.sampling import SAMPLING_REFUSED, SamplingBody

_STATE = "send previous_response_id, or the items themselves"
_CHATS = "it is a field of /v1/chat/completions: here it is "

RESPONSES_REFUSED: Mapping[str, Refusal] = {
    **SAMPLING_REFUSED,
    "access_programs": Refusal("there are none"),
    "background": Refusal("keep the connection open until the response is there", (False,)),
    "background_options": Refusal("there are no responses in the background"),
    "context_management": Refusal(_STATE),
    "conversation": Refusal(_STATE),
    "image": Refusal("answers are text"),
    "logprobs": Refusal(_CHATS + 'include: ["message.output_text.logprobs"]', (False,)),
    "max_completion_tokens": Refusal(_CHATS + "max_output_tokens"),
    "max_tokens": Refusal(_CHATS + "max_output_tokens"),
    "max_tool_calls": Refusal("tools are called by you; parallel_tool_calls: false has one call at most"),
    "messages": Refusal(_CHATS + "input"),
    "moderation": Refusal("nothing is moderated"),
    "n": Refusal("a response is one choice: send several requests", (1,)),
    "prompt": Refusal("there are no stored prompts: send instructions and input"),
    "reasoning_effort": Refusal(_CHATS + "reasoning.effort"),
    "response_format": Refusal(_CHATS + "text.format"),
    "truncation": Refusal("a prompt is cut by truncate_prompt_tokens alone", ("disabled",)),
}

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"


class ReasoningBody(Body):
    """How the model reasons."""

    effort: str | None = Field(None, description="none: the model does not reason. No other is taken.")
    summary: Literal["auto"] | None = Field(None, description="Taken; reasoning is told as it is, and not summed up.")
    generate_summary: Literal["auto"] | None = Field(None, description="The same by its old name.")


class TextFormat(Body):
    """What the answer has to match, in this route's flat form."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, min_length=1, max_length=256)
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = Field(None, description="The schema is enforced, whatever this says.")


class TextBody(Body):
    """The text of the answer."""

    format: TextFormat | None = None
    verbosity: str | None = Field(None, description="Taken, and changes nothing.")


class ResponseStreamOptions(Body):
    """What a stream tells beside its text."""

    include_obfuscation: bool | None = Field(None, description="Taken and not done.")


def _leave_out_refused(schema: dict[str, Any]) -> None:
    """What other text routes have and this one refuses is not described."""
    for name in RESPONSES_REFUSED:
        schema["properties"].pop(name, None)


Input = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]})]


class ResponsesBody(SamplingBody):
    """POST /v1/responses."""

    model_config = ConfigDict(json_schema_extra=_leave_out_refused)
    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED - {"metadata", "prediction", "store", "user", "verbosity"}
    refused: ClassVar[Mapping[str, Refusal]] = RESPONSES_REFUSED

    model: ModelName
    input: Input = Field(
        description="Text, or items: message, function_call, function_call_output, reasoning, as responses have them."
    )
    instructions: str | None = Field(None, description="A system message before all; not carried on to the next turn.")
    previous_response_id: str | None = Field(None, description="The response that this one goes on from.")
    store: bool | None = Field(None, description="false: the response is not kept for a next turn.")
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = Field(None, description="Reasoning and calls included.")
    tools: list[dict[str, Any]] | None = Field(
        None, description="Functions: [{type: function, name, description, parameters, strict}]."
    )
    tool_choice: Any = Field(None, description="auto, none, required, {type: function, name}, or allowed_tools.")
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most.")
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    thinking_token_budget: int | None = Field(None, description="Reasoning ends within so many tokens (as vLLM).")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="enable_thinking, and other switches that the model's chat template knows."
    )
    include: list[str] | None = Field(None, description=f"{LOGPROBS} is what there is.")
    top_logprobs: int | None = Field(None, description=f"With include {LOGPROBS}: alternatives a token.")
    metadata: dict[str, str] | None = Field(None, description="Told again in the response.")
    user: str | None = Field(None, description="Who shares with others, with --scheduling-policy fair.", max_length=256)


# Items

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """A text of a caller's."""

    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """A text of the model's."""

    text: str
    annotations: tuple[()] = ()
    logprobs: list[ContentLogprobOut] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of any role."""

    id: str
    role: str
    content: list[InputText | OutputText]
    status: ItemStatus = "completed"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning, whole: there are no summaries."""

    id: str
    content: list[ReasoningText]
    summary: tuple[()] = ()
    encrypted_content: None = None
    status: ItemStatus = "completed"


class FunctionCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call; arguments are JSON text, cut short where the item is incomplete."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class FunctionCallOutputItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """A call's result."""

    id: str
    call_id: str
    output: str
    status: ItemStatus = "completed"


OutputItem = ReasoningItem | MessageItem | FunctionCallItem
Item = OutputItem | FunctionCallOutputItem


# Answers


class InputTokens(msgspec.Struct, frozen=True):
    """Of the input, the tokens that were not computed again."""

    cached_tokens: int
    cache_write_tokens: int = 0
    """Whoever is billed for what a cache takes up: nobody here."""


class ResponseUsageOut(msgspec.Struct, frozen=True):
    """Tokens."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class ResponseErrorOut(msgspec.Struct, frozen=True):
    """Why a response failed."""

    message: str
    code: str = "server_error"


class IncompleteOut(msgspec.Struct, frozen=True):
    """Why a response is not whole: max_output_tokens, the end of the context too; or timeout."""

    reason: str


class ReasoningOut(msgspec.Struct, frozen=True):
    """What was asked for."""

    effort: str | None = None
    summary: str | None = None


ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseOut(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as it is answered, streamed and kept."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    error: ResponseErrorOut | None = None
    incomplete_details: IncompleteOut | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsageOut | None = None
    background: bool = False
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningOut
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    user: str | None


class DeletedOut(msgspec.Struct, frozen=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, frozen=True):
    """GET /v1/responses/{id}/input_items."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
