"""How choices end: which token ends one, and what one is told that was taken off too often. Pure."""

from headway.core.output import FinishReason
from headway.core.sequence import Sequence
from headway.errors import PreemptionLimit


def ending_of_token(sequence: Sequence, token_id: int) -> tuple[FinishReason, int | None]:
    """Why a choice ends with its last token, and the stop token where one was asked for. An end token on the last
    position is a stop."""
    is_stop = token_id in sequence.end_token_ids
    is_asked = is_stop and token_id in sequence.sampling.stop_token_ids
    return "stop" if is_stop else "length", token_id if is_asked else None


def make_preemption_limit(sequence: Sequence) -> PreemptionLimit:
    """What a choice ends with that was taken off too often."""
    return PreemptionLimit(
        f"this request lost its KV cache to others {sequence.num_preemptions} times, more than it may: try again "
        "later, or start with a larger --kv-cache-memory or a smaller --max-num-seqs"
    )
