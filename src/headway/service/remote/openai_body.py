"""A GenerateRequest as the body of an OpenAI-compatible server: by OpenAI's names, and vLLM's where it takes them.

What the caller did not say is not said, so that the other server's own defaults hold. What can not be said is refused
by its name: a field that changes nothing would be a wrong answer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.core.request import ChatPrompt, GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.core.structured import StructuredOutputs
from headway.core.tools import ToolUse
from headway.errors import UnsupportedFeature
from headway.service.remote.options import OpenAIOptions

_OPENAI = ("n", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stop", "logit_bias")
_VLLM = (
    "top_k", "min_p", "repetition_penalty", "stop_token_ids", "bad_words", "allowed_token_ids", "ignore_eos",
    "include_stop_str_in_output", "min_tokens", "truncate_prompt_tokens", "skip_special_tokens",
    "thinking_token_budget",
)  # fmt: skip
_NOWHERE = ("prompt_logprobs", "max_length", "constraint", "bad_token_ids")
_DEFAULTS = SamplingParams()
_REASONING = ("reasoning", "reasoning_content")


def generate_body(request: GenerateRequest, model: str, options: OpenAIOptions) -> tuple[str, dict[str, Any]]:
    """The route under the server's address, and the body; always a stream. Raises UnsupportedFeature.

    Args:
        model: its name on that server.
    """
    is_chat = isinstance(request.prompt, ChatPrompt)
    body: dict[str, Any] = {"model": model, "stream": True}
    if options.include_usage:
        body["stream_options"] = {"include_usage": True}
    body |= _sampling(request.sampling, options, is_chat=is_chat)
    if isinstance(request.prompt, ChatPrompt):
        body |= _chat(request.prompt, request.tool_use, options)
        return "chat/completions", body
    if isinstance(request.prompt, TextPrompt):
        body["prompt"] = request.prompt.text
        if not request.prompt.add_special_tokens:
            _check_vllm(options, "add_special_tokens")
            body["add_special_tokens"] = False
    else:
        body["prompt"] = list(request.prompt.token_ids)
    return "completions", body


def _sampling(sampling: SamplingParams, options: OpenAIOptions, *, is_chat: bool) -> dict[str, Any]:
    for name in _NOWHERE:
        if getattr(sampling, name) != getattr(_DEFAULTS, name):
            raise UnsupportedFeature(
                f"{name} can not be asked of this model, which another server computes: leave it out", param=name
            )
    body = {name: _plain(getattr(sampling, name)) for name in _OPENAI if _is_said(sampling, name)}
    for name in _VLLM:
        if _is_said(sampling, name):
            if getattr(sampling, name) != getattr(_DEFAULTS, name):
                _check_vllm(options, name)
            if options.dialect == "vllm":
                body[name] = _plain(getattr(sampling, name))
    if sampling.max_tokens is not None:
        body[options.max_tokens_name if is_chat else "max_tokens"] = sampling.max_tokens
    if sampling.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": sampling.logprobs} if is_chat else {"logprobs": sampling.logprobs}
    if sampling.structured_outputs is not None:
        body |= _structure(sampling.structured_outputs, options)
    return body


def _is_said(sampling: SamplingParams, name: str) -> bool:
    """Whether the caller named it, where that is known; else whether it has another value than always."""
    if sampling.given is not None and name in sampling.given:
        return True
    return bool(getattr(sampling, name) != getattr(_DEFAULTS, name))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return {str(key): bias for key, bias in value.items()} if isinstance(value, dict) else value


def _structure(wanted: StructuredOutputs, options: OpenAIOptions) -> dict[str, Any]:
    match wanted.kind:
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            schema = msgspec.json.decode(wanted.value) if isinstance(wanted.value, str) else wanted.value
            named = {"name": "answer", "schema": {} if schema is True else schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
    _check_vllm(options, wanted.param)
    return {"structured_outputs": {wanted.kind: wanted.value}}


def _chat(prompt: ChatPrompt, use: ToolUse, options: OpenAIOptions) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [_message(message, options) for message in prompt.messages]}
    if prompt.tools:
        body["tools"] = [dict(tool) for tool in prompt.tools]
        body |= _tool_use(use)
    if not prompt.add_generation_prompt or prompt.continue_final_message:
        _check_vllm(options, "continue_final_message" if prompt.continue_final_message else "add_generation_prompt")
        body |= {
            "add_generation_prompt": prompt.add_generation_prompt,
            "continue_final_message": prompt.continue_final_message,
        }
    return body | _template_kwargs(prompt.template_kwargs, options)


def _message(message: Mapping[str, Any], options: OpenAIOptions) -> dict[str, Any]:
    told = dict(message)
    if options.dialect == "openai":
        for name in _REASONING:
            told.pop(name, None)
        if told.get("role") == "tool":
            told.pop("name", None)
    if told.get("tool_calls"):
        told["tool_calls"] = [_call(call) for call in told["tool_calls"]]
    return told


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments travel as text; a caller may have sent them as an object."""
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = msgspec.json.encode(function.get("arguments") or {}).decode()
    return {**call, "function": function}


def _tool_use(use: ToolUse) -> dict[str, Any]:
    body: dict[str, Any] = {} if use.is_parallel else {"parallel_tool_calls": False}
    if use.choice == "named":
        return body | {"tool_choice": {"type": "function", "function": {"name": use.name}}}
    if use.names:
        tools = [{"type": "function", "function": {"name": name}} for name in use.names]
        allowed = {"mode": use.choice, "tools": tools}
        return body | {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    return body if use.choice == "auto" else body | {"tool_choice": use.choice}


def _template_kwargs(given: Mapping[str, Any], options: OpenAIOptions) -> dict[str, Any]:
    if not given:
        return {}
    if options.dialect == "vllm":
        return {"chat_template_kwargs": dict(given)}
    if given == {"enable_thinking": False}:
        return {"reasoning_effort": "none"}
    _check_vllm(options, "chat_template_kwargs")
    return {}


def _check_vllm(options: OpenAIOptions, name: str) -> None:
    """Raises UnsupportedFeature where the server has OpenAI's fields alone."""
    if options.dialect != "vllm":
        raise UnsupportedFeature(
            f"{name} can not be asked of this model: its server takes OpenAI's fields alone. Leave it out, or "
            "serve the model with options.dialect vllm if its server has that field",
            param=name,
        )
