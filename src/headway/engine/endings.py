"""How choices end: which token ends one, and the terminal event that is told. Pure."""

import headway_wire as wire
from headway.core.output import FinishReason
from headway.core.sequence import Sequence
from headway.errors import HeadwayError, PreemptionLimit


def ending_of_token(sequence: Sequence, token_id: int) -> tuple[FinishReason, int | None]:
    """Why a choice ends with its last token, and the stop token where one was asked for. An end token on the last
    position is a stop."""
    is_stop = token_id in sequence.end_token_ids
    is_asked = is_stop and token_id in sequence.sampling.stop_token_ids
    return "stop" if is_stop else "length", token_id if is_asked else None


def make_terminal_event(
    sequence: Sequence,
    finish_reason: FinishReason,
    *,
    token_ids: list[int] | None = None,
    logprobs: list[wire.TokenLogprobs] | None = None,
    stop_reason: int | str | None = None,
    error: HeadwayError | None = None,
) -> wire.TokenEvent:
    """The one terminal event of a choice."""
    return wire.TokenEvent(
        sequence.request_id,
        sequence.choice,
        token_ids or [],
        logprobs,
        finish_reason,
        stop_reason,
        sequence.num_cached_tokens,
        None if error is None else error.to_wire(),
    )


def make_preemption_limit(sequence: Sequence) -> PreemptionLimit:
    """What a choice ends with that was taken off too often."""
    return PreemptionLimit(
        f"this request lost its KV cache to others {sequence.num_preemptions} times, more than it may: try again "
        "later, or start with a larger --kv-cache-memory or a smaller --max-num-seqs"
    )
