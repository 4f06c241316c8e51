"""Bodies and answers of the plain routes. The model may be left out: then it is the first one that is served."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from headway.server.body import Body, ModelName, Refusal
from headway.server.openai.schema import ChatMessage, Prompts
from headway.server.sampling import SAMPLING_REFUSED, SamplingBody


class PlainBody(SamplingBody):
    """What the three generating routes share."""

    refused: ClassVar[Mapping[str, Refusal]] = {
        **SAMPLING_REFUSED,
        "echo": Refusal("ask for return_full_text", (False,)),
        "prompt_logprobs": Refusal("POST /v1/completions tells them"),
    }

    model: ModelName | None = None
    return_full_text: bool | None = Field(None, description="Each text begins with its prompt.")
    add_special_tokens: bool | None = None


class GenerateOneBody(PlainBody):
    """POST /basic_generate and /generate_stream."""

    prompt: str


class GenerateManyBody(PlainBody):
    """POST /generate."""

    prompts: list[str]


class TokenizeBody(Body):
    """POST /tokenize: a prompt or messages, as vLLM."""

    model: ModelName | None = None
    prompt: Prompts = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    """POST /detokenize, as vLLM."""

    model: ModelName | None = None
    tokens: list[int]


class GeneratedText(msgspec.Struct, frozen=True):
    """POST /basic_generate with one choice."""

    generated_text: str


class GeneratedTexts(msgspec.Struct, frozen=True):
    """POST /generate, and /basic_generate with n over 1: texts in the order of the prompts, n for each."""

    generated_texts: list[str]


class TokenEventOut(msgspec.Struct, frozen=True):
    """One event of /generate_stream."""

    token: str
    """What the text gained."""
    sequence_id: int
    """Which choice."""


class Tokens(msgspec.Struct, frozen=True):
    """POST /tokenize."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Text(msgspec.Struct, frozen=True):
    """POST /detokenize."""

    prompt: str
