"""The sampling fields that all text routes share, and their way to SamplingParams."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from headway.core.sampling import SamplingParams, sampling_defaults
from headway.errors import InvalidRequest
from headway.server.body import Body, Refusal


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
    "allowed_token_ids": Refusal("use logit_bias"),
    "bad_words": Refusal("use logit_bias", ([],)),
    "best_of": Refusal("ask for n choices and choose yourself", (1,)),
    "early_stopping": Refusal(_NO_BEAMS, (False,)),
    "guided_choice": Refusal("structured output is not there yet"),
    "guided_grammar": Refusal("structured output is not there yet"),
    "guided_json": Refusal("structured output is not there yet"),
    "guided_regex": Refusal("structured output is not there yet"),
    "length_penalty": Refusal(_NO_BEAMS, (1.0, 1)),
    "priority": Refusal("requests are served in the order of their arrival", (0,)),
    "prompt_logprobs": Refusal("ask for the logprobs of the output alone"),
    "spaces_between_special_tokens": Refusal("texts are decoded as the model's tokenizer does", (True,)),
    "structured_outputs": Refusal("structured output is not there yet"),
    "truncate_prompt_tokens": Refusal("count with /tokenize and cut the prompt yourself"),
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
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    skip_special_tokens: bool | None = None
    timeout_s: float | None = Field(None, description="End with what there is after so many seconds.")


def to_sampling(
    body: SamplingBody,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
) -> SamplingParams:
    """Valid SamplingParams: the request's value, else the model's, else the API's.

    Args:
        defaults: of the model, from its generation_config.
        max_tokens: what the route says once its own names and default are resolved; None: the rest of the context.
        logprobs: likewise.

    Raises InvalidRequest.
    """
    fields = sampling_defaults(defaults)
    for name in _PLAIN:
        value = getattr(body, name)
        if value is not None:
            fields[name] = value
    if body.logit_bias is not None:
        fields["logit_bias"] = {_token_id(key): bias for key, bias in body.logit_bias.items()}
    if body.stop is not None:
        fields["stop"] = tuple(body.stop)
    return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **fields)


_PLAIN = tuple(name for name in SamplingBody.model_fields if name not in ("logit_bias", "stop", "max_tokens"))


def _token_id(key: str) -> int:
    """logit_bias keys are token ids in decimal digits: JSON knows no other keys than text."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(
            'logit_bias has a key that is no token id; keys are ids in decimal digits, such as "42"',
            param="logit_bias",
        )
    return int(key)
