"""What a Submit must be to become sequences: pure checks, each naming the value, the limit and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

import headway_wire as wire
from headway.config import SchedulingPolicy
from headway.core.sampling import SamplingParams
from headway.engine.constraint import check_constraint
from headway.errors import ContextLengthExceeded, InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What requests are checked against."""

    vocab_size: int
    """Width of the logits."""
    max_model_len: int
    """Tokens of prompt and output together."""
    num_pool_tokens: int
    """Tokens that the whole KV cache holds."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Whether a request's priority has an effect."""


def check_submit(submit: wire.Submit, limits: ModelLimits) -> int:
    """The tokens, prompt and output, that each choice may have. Raises InvalidRequest."""
    sampling = submit.sampling
    SamplingParams(**msgspec.structs.asdict(sampling))  # the parent's check again: a bad value would reach the kernels
    _check_ids("prompt", submit.prompt_token_ids, limits.vocab_size)
    _check_ids("stop_token_ids", sampling.stop_token_ids, limits.vocab_size)
    _check_ids("logit_bias", sampling.logit_bias, limits.vocab_size)
    _check_ids("allowed_token_ids", sampling.allowed_token_ids or (), limits.vocab_size)
    for word in sampling.bad_token_ids:
        _check_ids("bad_words", word, limits.vocab_size)
    if sampling.constraint is not None:
        check_constraint(sampling.constraint)
    _check_priority(submit.priority, limits.scheduling_policy)
    num_prompt = len(submit.prompt_token_ids)
    if num_prompt == 0:
        raise InvalidRequest("the prompt has no tokens; it needs at least 1", param="prompt")
    if num_prompt >= limits.max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt} tokens and the model's context is {limits.max_model_len}, of which at least "
            "1 is for the output: shorten the prompt",
            param="prompt",
        )
    wanted = limits.max_model_len if sampling.max_tokens is None else num_prompt + sampling.max_tokens
    if wanted > limits.max_model_len:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt} tokens and max_tokens is {sampling.max_tokens}, together {wanted}; the "
            f"model's context is {limits.max_model_len}: shorten the prompt or lower max_tokens",
            param="max_tokens",
        )
    return _fit_pool(num_prompt, wanted, limits, has_max_tokens=sampling.max_tokens is not None)


def _check_priority(priority: int, policy: SchedulingPolicy) -> None:
    """0 says nothing; another one must have an effect."""
    if priority and policy != "priority":
        raise InvalidRequest(
            f"priority is {priority}, and this model is served with --scheduling-policy {policy}, which knows none: "
            "leave it out, or start the server with --scheduling-policy priority",
            param="priority",
        )


def _fit_pool(num_prompt: int, wanted: int, limits: ModelLimits, *, has_max_tokens: bool) -> int:
    """`wanted`, or what the pool holds where the caller asked for no number."""
    pool = limits.num_pool_tokens
    if num_prompt >= pool or (has_max_tokens and wanted > pool):
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt} tokens, with its output up to {wanted}, and the whole KV cache holds {pool}: "
            "shorten it, lower max_tokens, or start with a larger --kv-cache-memory",
            param="prompt" if num_prompt >= pool else "max_tokens",
        )
    return min(wanted, pool)


def _check_ids(param: str, ids: Iterable[int], vocab_size: int) -> None:
    if not ids:
        return
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(
            f"{param} has the token id {bad}; the vocabulary has ids 0 to {vocab_size - 1}", param=param
        )
