"""A body of /v1/responses to a GenerateRequest, valid by construction; what is wrong is told in this route's words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headway.core.request import ChatPrompt, GenerateRequest
from headway.core.sampling import MAX_LOGPROBS, SamplingParams
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolUse
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.body import describe
from headway.server.openai.convert import effort_kwargs
from headway.server.openai.responses.items import new_id, to_messages
from headway.server.openai.responses.schema import ENCRYPTED_REASONING, LOGPROBS, Item, ResponsesBody, TextFormat
from headway.server.sampling import to_sampling
from headway.server.tools import read_tool_use, read_tools

MAX_METADATA = 16
"""Pairs, of at most 64 and 512 characters, as OpenAI has it."""


def to_request(
    body: ResponsesBody, history: Sequence[Item], items: Sequence[Item], defaults: Mapping[str, Any]
) -> GenerateRequest:
    """The request behind a body.

    Args:
        history: the items of the turns before.
        items: the body's own (items.read_items).
        defaults: the model's, for sampling.

    Raises InvalidRequest.
    """
    _check(body)
    nested = [_nested_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])]
    with in_own_words():
        tools = read_tools(nested)
        prompt = ChatPrompt(
            to_messages(history, items, body.instructions), tools or None, template_kwargs=_template_kwargs(body)
        )
        return GenerateRequest(
            new_id("resp"),
            body.model,
            prompt,
            _sampling(body, defaults),
            priority=body.priority or 0,
            tenant=body.user or "",
            cache_salt=body.cache_salt or "",
            tool_use=_tool_use(body, tools),
        )


_TOOL_PATH = re.compile(r"(tools\[\d+\])\.function\b")


@contextmanager
def in_own_words() -> Iterator[None]:
    """Errors that name a chat's fields are raised again with this route's: its tools are flat, and its limit has
    another name."""
    try:
        yield
    except InvalidRequest as error:
        param = error.param or ""
        if param == "max_tokens":
            raise type(error)(
                error.message.replace("max_tokens", "max_output_tokens", 1), param="max_output_tokens"
            ) from None
        if _TOOL_PATH.match(param):
            raise type(error)(_TOOL_PATH.sub(r"\1", error.message), param=_TOOL_PATH.sub(r"\1", param)) from None
        raise


def _check(body: ResponsesBody) -> None:
    for i, name in enumerate(body.include or ()):
        if name not in (LOGPROBS, ENCRYPTED_REASONING):
            raise UnsupportedFeature(
                f"include[{i}] is {name[:64]!r}; there is {LOGPROBS}, and {ENCRYPTED_REASONING} is taken",
                param="include",
            )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only for stream: true", param="stream_options")
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA or any(len(key) > 64 or len(value) > 512 for key, value in metadata.items()):
        raise InvalidRequest(
            f"metadata must have at most {MAX_METADATA} pairs, keys of at most 64 characters and values of 512",
            param="metadata",
        )


def _sampling(body: ResponsesBody, defaults: Mapping[str, Any]) -> SamplingParams:
    if body.max_output_tokens == 0:
        raise InvalidRequest("max_output_tokens is 0; it must be at least 1", param="max_output_tokens")
    sampling = to_sampling(
        body,
        defaults,
        max_tokens=body.max_output_tokens,
        logprobs=_num_logprobs(body),
        thinking_token_budget=body.thinking_token_budget,
    )
    wanted = _wanted_structure(body.text.format) if body.text is not None and body.text.format is not None else None
    if wanted is None:
        return sampling
    if sampling.structured_outputs is not None:
        raise InvalidRequest(
            f"{sampling.structured_outputs.param} and text.format both say what the answer has to match: leave one of "
            "them out",
            param="text.format",
        )
    return msgspec.structs.replace(sampling, structured_outputs=wanted)


def _num_logprobs(body: ResponsesBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs is {top}; it must be at least 0 and at most {MAX_LOGPROBS}", param="top_logprobs"
        )
    is_wanted = LOGPROBS in (body.include or ())
    if top and not is_wanted:
        raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
    return (top or 0) if is_wanted else None


def _wanted_structure(wanted: TextFormat) -> StructuredOutputs | None:
    is_schema = wanted.type == "json_schema"
    for name, value in (("name", wanted.name), ("schema", wanted.json_schema)):
        if (value is not None) != is_schema:
            raise InvalidRequest(
                f"text.format.{name} is {'missing' if is_schema else 'only for type json_schema'}: that has type, name "
                "and schema",
                param=f"text.format.{name}",
            )
    match wanted.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutputs(kind="json_object", param="text.format")
        case "json_schema":
            return StructuredOutputs(kind="json_schema", value=wanted.json_schema, param="text.format.schema")


def _template_kwargs(body: ResponsesBody) -> dict[str, Any]:
    effort = body.reasoning.effort if body.reasoning is not None else None
    return effort_kwargs(effort, body.chat_template_kwargs or {}, "reasoning.effort")


def _nested_tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A flat tool in chat's form, which read_tools checks."""
    kind = tool.get("type")
    if kind != "function":
        named = repr(kind[:64]) if isinstance(kind, str) else describe(kind)
        raise UnsupportedFeature(
            f"{path}.type is {named}; tools are functions, which you run: the server runs none", param=f"{path}.type"
        )
    if tool.get("function") is not None:
        raise InvalidRequest(
            f"{path}.function is the form of /v1/chat/completions: here name, description, parameters and strict stand "
            "beside the type",
            param=f"{path}.function",
        )
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _tool_use(body: ResponsesBody, tools: Sequence[Mapping[str, Any]]) -> ToolUse:
    return read_tool_use(tools, _nested_choice(body.tool_choice), body.parallel_tool_calls)


def _nested_choice(choice: object) -> object:
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            allowed = [_nested_choice(tool) for tool in tools if isinstance(tool, dict)]
            if len(allowed) == len(tools):
                return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    raise InvalidRequest(
        'tool_choice must be auto, none, required, {"type": "function", "name": ...}, or {"type": "allowed_tools", '
        '"mode": "auto" or "required", "tools": [{"type": "function", "name": ...}]}',
        param="tool_choice",
    )
