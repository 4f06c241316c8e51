"""Anthropic's bodies to GenerateRequests, valid by construction. The only file that knows both."""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.sampling import SamplingParams, sampling_defaults
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.anthropic.messages import read_conversation
from headway.server.anthropic.schema import ContextManagement, CountTokensBody, MessagesBody, Thinking, ToolChoice
from headway.server.body import describe
from headway.server.tools import read_tool_use, read_tools

MAX_TOOL_NAME_LENGTH = 128
_SAMPLING = ("temperature", "top_p", "top_k")
_TOOL_FIELDS = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
"""Anthropic's names of a function's fields, and the core's."""
_IGNORED_TOOL_FIELDS = frozenset(("type", "cache_control", "eager_input_streaming"))
_NEUTRAL_TOOL_FIELDS: Mapping[str, object] = {
    "allowed_callers": ["direct"],
    "defer_loading": False,
    "input_examples": [],
}
"""Fields that are refused unless they ask for nothing."""


def message_request(body: MessagesBody, defaults: Mapping[str, Any]) -> GenerateRequest:
    """The one request behind a body. Raises InvalidRequest.

    Args:
        defaults: of the model, from its generation_config.
    """
    prompt = message_prompt(body)
    return GenerateRequest(
        f"msg_{token_hex(16)}",
        body.model,
        prompt,
        _sampling(body, defaults),
        tenant=(body.metadata.user_id if body.metadata is not None else None) or "",
        tool_use=_tool_use(prompt.tools or (), body.tool_choice),
    )


def message_prompt(body: CountTokensBody) -> ChatPrompt:
    """The messages and how to render them. Raises InvalidRequest."""
    _check_edits(body.context_management)
    conversation = read_conversation(body.system, body.messages)
    return ChatPrompt(
        conversation.messages,
        _tools(body.tools or ()) or None,
        add_generation_prompt=not conversation.is_prefilled,
        template_kwargs={} if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled"},
        continue_final_message=conversation.is_prefilled,
        usual_kwargs={"enable_thinking": False},
    )


def _sampling(body: MessagesBody, defaults: Mapping[str, Any]) -> SamplingParams:
    fields = sampling_defaults(defaults)
    fields |= {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    return SamplingParams(
        max_tokens=body.max_tokens,
        lowers_max_tokens=True,
        stop=tuple(body.stop_sequences or ()),
        structured_outputs=_structure(body),
        thinking_token_budget=_budget(body.thinking, body.max_tokens),
        **fields,
    )


def _structure(body: CountTokensBody) -> StructuredOutputs | None:
    wanted = body.output_config.format if body.output_config is not None else None
    param = "output_config.format.schema"
    if body.output_format is not None:
        if wanted is not None:
            raise InvalidRequest(
                "output_config.format and output_format both say what the answer has to match: leave one of them out",
                param="output_format",
            )
        wanted, param = body.output_format, "output_format.schema"
    return None if wanted is None else StructuredOutputs(kind="json_schema", value=wanted.json_schema, param=param)


def _budget(thinking: Thinking | None, max_tokens: int) -> int | None:
    """Of reasoning: below max_tokens, so that there is room for an answer."""
    budget = None if thinking is None else thinking.budget_tokens
    if thinking is None or (thinking.type != "enabled" and budget is None):
        return None
    path = "thinking.budget_tokens"
    if thinking.type != "enabled":
        raise InvalidRequest(f"{path} is only for thinking of type enabled: leave it out", param=path)
    if budget is None:
        raise InvalidRequest(f"{path} is missing: with type enabled it must be given", param=path)
    if not 1 <= budget < max_tokens:
        raise InvalidRequest(
            f"{path} is {budget}; it must be at least 1 and below max_tokens, which is {max_tokens}", param=path
        )
    return budget


def _check_edits(management: ContextManagement | None) -> None:
    for i, edit in enumerate((management.edits if management is not None else None) or ()):
        kind = edit.get("type")
        if not isinstance(kind, str) or not kind.startswith("clear_thinking_"):
            path = f"context_management.edits[{i}]"
            raise UnsupportedFeature(
                f"{path} is not supported: leave it out, and shorten the messages yourself", param=path
            )


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    return read_tools(functions, max_name_length=MAX_TOOL_NAME_LENGTH)


def _function(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A tool as templates know it; its fields' values are checked by read_tools()."""
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        name = repr(kind[:64]) if isinstance(kind, str) else describe(kind)
        raise UnsupportedFeature(
            f"{path}.type is {name}: there are no tools of the server; give a tool of your own, with an input_schema",
            param=f"{path}.type",
        )
    if tool.get("input_schema") is None:
        raise InvalidRequest(f"{path}.input_schema is missing: it must be given", param=f"{path}.input_schema")
    function: dict[str, Any] = {}
    for name, value in tool.items():
        if name in _TOOL_FIELDS:
            function[_TOOL_FIELDS[name]] = value
        elif value is not None and name not in _IGNORED_TOOL_FIELDS:
            _check_neutral(name, value, path)
    return {"type": "function", "function": function}


def _check_neutral(name: str, value: object, path: str) -> None:
    param = f"{path}.{name[:64]}"
    if name not in _NEUTRAL_TOOL_FIELDS:
        raise InvalidRequest(f"{param} is no field of a tool: leave it out", param=param)
    if value != _NEUTRAL_TOOL_FIELDS[name]:
        raise UnsupportedFeature(f"{param} is not supported: leave it out", param=param)


def _tool_use(tools: Sequence[Mapping[str, Any]], choice: ToolChoice | None) -> ToolUse:
    if choice is None:
        return ToolUse()
    if (choice.type == "tool") != (choice.name is not None):
        problem = "missing: type tool names one" if choice.name is None else "only for type tool: leave it out"
        raise InvalidRequest(f"tool_choice.name is {problem}", param="tool_choice.name")
    wanted: object = "required" if choice.type == "any" else choice.type
    if choice.type == "tool":
        wanted = {"type": "function", "function": {"name": choice.name}}
    return read_tool_use(tools, wanted, not choice.disable_parallel_tool_use)
