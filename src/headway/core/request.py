"""What a door asks a service for: a prompt in one of three forms, and how to answer it. Valid by construction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.sampling import SamplingParams
from headway.core.tools import ToolUse


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A raw prompt, tokenised with the model's own special tokens around it (BOS once).

    As everywhere in the field, control tokens written in a raw prompt are control tokens: whoever sends one may render
    a template himself. What comes from elsewhere belongs into messages (ChatPrompt), where they stay text.
    """

    text: str
    add_special_tokens: bool = True
    parse_special: bool = True


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Token ids, taken as they are. The vocabulary is checked where it is known."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template. Control tokens inside their strings stay text."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The template's own switches."""
    continue_final_message: bool = False
    """The last message, an assistant's, is not ended: the output goes on with it."""
    usual_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Switches where neither the request (template_kwargs) nor the preset that it names sets them."""


Prompt = TextPrompt | TokensPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt to be continued `sampling.n` times by `model`."""

    request_id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams
    priority: int = 0
    """Lower goes first, with --scheduling-policy priority."""
    tenant: str = ""
    """Who shares with others, with --scheduling-policy fair."""
    cache_salt: str = ""
    """Prefixes in the KV cache are shared only with requests of the same salt."""
    tool_use: ToolUse = field(default_factory=ToolUse)
    """Of a ChatPrompt with tools."""
    splits_reasoning: bool = True
    """A chat's reasoning is told apart from its text, where the model reasons; False: it stays in the text."""
