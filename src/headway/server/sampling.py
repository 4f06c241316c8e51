"""The sampling fields that all text routes share, and their way to SamplingParams."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from headway.core.sampling import SamplingParams, sampling_defaults
from headway.errors import InvalidRequest
from headway.server.body import Body, Refusal
from headway.server.structured import GUIDED_REFUSED, ResponseFormat, StructuredOutputsBody, wanted_structure


def _one_or_more(value: object) -> object:
    """A single string is a list of one."""
    return [value] if isinstance(value, str) else value


StringOrList = Annotated[
    list[str],
    BeforeValidator(_one_or_more),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]

_NO_BEAMS = "Headway samples; it has no beam search: ask for n choices instead"

SAMPLING_REFUSED: Mapping[str, Refusal] = {
    **GUIDED_REFUSED,
    "best_of": Refusal("ask for n choices and choose yourself", (1,)),
    "early_stopping": Refusal(_NO_BEAMS, (False,)),
    "length_penalty": Refusal(_NO_BEAMS, (1.0, 1)),
    "spaces_between_special_tokens": Refusal("texts are decoded as the model's tokenizer does", (True,)),
    "truncation_side": Refusal("the last tokens of a prompt are kept", ("left",)),
    "use_beam_search": Refusal(_NO_BEAMS, (False,)),
}
"""Fields of other servers' text routes that Headway refuses by name."""


class SamplingBody(Body):
    """How to sample, in vLLM's and OpenAI's names; ranges are SamplingParams' own."""

    refused: ClassVar[Mapping[str, Refusal]] = SAMPLING_REFUSED

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, description="Token ids, written as text, to -100..100.")
    stop: StringOrList | None = None
    stop_token_ids: list[int] | None = None
    bad_words: StringOrList | None = Field(None, description="Texts that do not come up in the output.")
    allowed_token_ids: list[int] | None = Field(None, description="No other token is chosen.")
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    max_length: int | None = Field(None, description="Tokens of prompt and output together.")
    truncate_prompt_tokens: int | None = Field(
        None, description="A longer prompt is cut to its last so many tokens; -1: to what leaves room for max_tokens."
    )
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputsBody | None = None
    grammar: str | None = Field(None, description="As structured_outputs.grammar (llama.cpp's name); empty: none.")
    timeout_s: float | None = Field(None, description="End with what there is after so many seconds.")
    priority: int | None = Field(
        None,
        description="Lower goes first, with --scheduling-policy priority; else only 0 is taken.",
        ge=-(2**31),
        lt=2**31,
    )
    cache_salt: str | None = Field(
        None, description="Prefixes are shared only with requests of the same salt.", min_length=1, max_length=256
    )


def to_sampling(
    body: SamplingBody,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    response_format: ResponseFormat | None = None,
    thinking_token_budget: int | None = None,
) -> SamplingParams:
    """Valid SamplingParams: the request's value, else the model's, else the API's.

    Args:
        defaults: of the model, from its generation_config, or of a preset, which may have max_tokens too.
        max_tokens: what the route says once its own names and default are resolved; None: the rest of the context.
        logprobs, prompt_logprobs, response_format, thinking_token_budget: likewise.

    Raises InvalidRequest.
    """
    fields = sampling_defaults(defaults)
    if max_tokens is None and body.max_length is None and "max_tokens" in defaults:
        max_tokens = max(defaults["max_tokens"], body.min_tokens or 0)
    for name in _PLAIN:
        value = getattr(body, name)
        if value is not None:
            fields[name] = value
    if body.logit_bias is not None:
        fields["logit_bias"] = {_token_id(key): bias for key, bias in body.logit_bias.items()}
    for name in ("stop", "bad_words"):
        if getattr(body, name) is not None:
            fields[name] = tuple(getattr(body, name))
    structured = wanted_structure(body.structured_outputs, response_format, body.grammar)
    if structured is not None:
        fields["structured_outputs"] = structured
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        thinking_token_budget=thinking_token_budget,
        given=tuple(fields),
        **fields,
    )


def usual_max_tokens(body: SamplingBody, defaults: Mapping[str, Any], usual: int) -> int | None:
    """Of a route that has a default of its own: the request's, else the preset's, else `usual`."""
    if body.max_tokens is not None or body.max_length is not None or "max_tokens" in defaults:
        return body.max_tokens
    return max(usual, body.min_tokens or 0)


_RESOLVED = frozenset(
    (
        "logit_bias", "stop", "bad_words", "max_tokens", "priority", "cache_salt", "structured_outputs", "grammar",
    )
)  # fmt: skip
"""Fields that are not a SamplingParams' field of the same name and type."""
_PLAIN = tuple(name for name in SamplingBody.model_fields if name not in _RESOLVED)


def _token_id(key: str) -> int:
    """logit_bias keys are token ids in decimal digits: JSON knows no other keys than text."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(
            'logit_bias has a key that is no token id; keys are ids in decimal digits, such as "42"',
            param="logit_bias",
        )
    return int(key)
