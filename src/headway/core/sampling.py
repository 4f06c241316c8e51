"""SamplingParams: how a request's tokens are chosen, checked once where it is made.

The fields that the worker has to know are headway_wire.Sampling's; those that only matter where the text is are added
here. Names and meanings are vLLM's.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

import headway_wire as wire
from headway.core.structured import StructuredOutputs
from headway.errors import InvalidRequest

MAX_N = 128
"""Choices a request."""
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 1024
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256
FIT = -1
"""Of truncate_prompt_tokens: what the model takes."""


DEFAULTABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""What a model's own generation_config may set where a request does not."""


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The SamplingParams fields that a model's generation_config sets; the rest of it is not about sampling."""
    return {name: generation_config[name] for name in DEFAULTABLE if generation_config.get(name) is not None}


class SamplingParams(wire.Sampling, frozen=True, kw_only=True, omit_defaults=True):
    """wire.Sampling and what the text needs. Raises InvalidRequest that names the field, the value and the limit.

    Checks that need a model (ids inside the vocabulary, lengths inside the context) are made where it is known.
    """

    stop: tuple[str, ...] = ()
    """The choice ends before the first of these in its text. A string alone is taken as the one."""
    include_stop_str_in_output: bool = False
    bad_words: tuple[str, ...] = ()
    """Texts that do not come up in the output, at its beginning or behind a space; they become bad_token_ids."""
    max_length: int | None = None
    """Prompt and output together have at most so many tokens."""
    lowers_max_tokens: bool = False
    """max_tokens that the context has no room for becomes what it has room for; False: it is refused."""
    truncate_prompt_tokens: int | None = None
    """A longer prompt is cut to its last so many tokens, a first BOS being kept; -1: to what leaves room for
    max_tokens. None: a prompt that is too long is refused."""
    skip_special_tokens: bool = True
    """Special tokens are left out of the text."""
    timeout_s: float | None = None
    """The request ends with what it has after so long."""
    structured_outputs: StructuredOutputs | None = None
    """What the answer has to match; it becomes the constraint."""
    thinking_token_budget: int | None = None
    """A model that reasons has to end its reasoning within so many tokens."""
    given: tuple[str, ...] | None = None
    """Fields that the caller set, for who hands the request on to another server, whose own defaults hold for the
    others; None: not known, those that differ from what stands here."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        if isinstance(self.bad_words, str):
            msgspec.structs.force_setattr(self, "bad_words", (self.bad_words,))
        _check_types(self)
        _check_range("n", self.n, 1, MAX_N)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_is_open=True)
        _check_range("top_k", self.top_k, -1, 2**31 - 1)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_is_open=True)
        if self.seed is not None:
            _check_range("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            # Without an output there has to be something to tell of the prompt.
            _check_range("max_tokens", self.max_tokens, 1 if self.prompt_logprobs is None else 0, 2**31 - 1)
        _check_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, over max_tokens {self.max_tokens}: lower it", param="min_tokens"
            )
        if self.logprobs is not None:
            _check_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.max_length is not None:
            _check_range("max_length", self.max_length, 2, 2**31 - 1)
        if self.truncate_prompt_tokens not in (None, FIT):
            _check_range("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1)
        if self.thinking_token_budget is not None:
            _check_range("thinking_token_budget", self.thinking_token_budget, 0, 2**31 - 1)
        if self.timeout_s is not None:
            _check_range("timeout_s", self.timeout_s, 0.0, 86400.0, low_is_open=True)
        self._check_stop()
        self._check_masks()
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIASES}", param="logit_bias"
            )
        for bias in self.logit_bias.values():
            _check_range("logit_bias", bias, -100.0, 100.0)

    def _check_masks(self) -> None:
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidRequest(
                f"bad_words has {len(self.bad_words)} texts, at most {MAX_BAD_WORDS}", param="bad_words"
            )
        for word in self.bad_words:
            if not word.strip() or len(word) > MAX_BAD_WORD_LENGTH:
                raise InvalidRequest(
                    f"bad_words has a text of {len(word)} characters; 1 to {MAX_BAD_WORD_LENGTH} are allowed, and not "
                    "space alone",
                    param="bad_words",
                )
        if not all(self.bad_token_ids):
            raise InvalidRequest("bad_token_ids has an empty list; each needs a token", param="bad_token_ids")
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids is empty: name at least one token, or leave it out", param="allowed_token_ids"
            )
        if {word[0] for word in self.bad_token_ids if len(word) == 1}.issuperset(self.allowed_token_ids):
            raise InvalidRequest(
                "bad_words has every one of allowed_token_ids: no token is left to choose", param="allowed_token_ids"
            )

    def _check_stop(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS}", param="stop")
        for stop in self.stop:
            if not 1 <= len(stop) <= MAX_STOP_STRING_LENGTH:
                raise InvalidRequest(
                    f"stop has a string of {len(stop)} characters; 1 to {MAX_STOP_STRING_LENGTH} are allowed",
                    param="stop",
                )


_Types = msgspec.defstruct("_Types", list(get_type_hints(SamplingParams).items()))


def _check_types(sampling: SamplingParams) -> None:
    """A float for an int would be no message to the worker, which ends there and then."""
    try:
        msgspec.convert(msgspec.structs.asdict(sampling), _Types)
    except msgspec.ValidationError as error:
        found = re.search(r"\$\.(\w+)", str(error))
        param = None if found is None else found[1]
        value = "" if param is None else f"{param} is {str(getattr(sampling, param))[:100]}, of a wrong type: "
        raise InvalidRequest(f"{value}{error}", param=param) from error


def _check_range(name: str, value: float, low: float, high: float, *, low_is_open: bool = False) -> None:
    is_inside = math.isfinite(value) and (low < value if low_is_open else low <= value) and value <= high
    if not is_inside:
        bound = "over" if low_is_open else "at least"
        raise InvalidRequest(f"{name} is {value}; it must be {bound} {low} and at most {high}", param=name)
