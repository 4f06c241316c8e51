"""Log-probabilities in OpenAI's two shapes, and a prompt's in vLLM's."""

import math
from collections.abc import Sequence

from headway.core.output import Logprob, TokenLogprob
from headway.server.openai.schema import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprobOut,
    PromptLogprobOut,
    PromptLogprobsOut,
    TokenLogprobOut,
)

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON can not say; OpenAI's own value."""


def chat_logprobs(entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Chat: one object a token, with raw bytes; the bytes of all tokens join to the text."""
    return ChatLogprobs([_content(entry) for entry in entries])


def completion_logprobs(
    entries: Sequence[TokenLogprob], num_characters: int, *, num_top: int
) -> tuple[CompletionLogprobs, int]:
    """Completions: parallel lists; and the text's characters up to their end.

    Args:
        num_characters: of this choice's text that began before these tokens; text_offset goes on from there.
        num_top: alternatives that were asked for; the chosen token is among them, as with OpenAI. 0: none.
    """
    offsets = []
    for entry in entries:
        offsets.append(num_characters)
        # Bytes that begin a character: a token may hold a part of one, and the parts join to one character.
        num_characters += sum((byte & 0xC0) != 0x80 for byte in entry.chosen.bytes)
    logprobs = CompletionLogprobs(
        [entry.chosen.token for entry in entries],
        [None if math.isnan(entry.chosen.logprob) else _finite(entry.chosen.logprob) for entry in entries],
        [_top(entry, num_top) for entry in entries] if num_top else None,
        offsets,
    )
    return logprobs, num_characters


def prompt_logprobs(entries: Sequence[TokenLogprob], num_top: int) -> PromptLogprobsOut:
    """A prompt's, each with the `num_top` likeliest tokens."""
    return [None if math.isnan(entry.chosen.logprob) else _ranked(entry, num_top) for entry in entries]


def _ranked(entry: TokenLogprob, num_top: int) -> dict[str, PromptLogprobOut]:
    ranks = {candidate.token_id: rank for rank, candidate in enumerate(entry.top, 1)}
    return {
        str(each.token_id): PromptLogprobOut(_finite(each.logprob), ranks.get(each.token_id), each.token)
        for each in (entry.chosen, *entry.top[:num_top])
    }


def _content(entry: TokenLogprob) -> ContentLogprobOut:
    chosen = entry.chosen
    return ContentLogprobOut(
        chosen.token, _finite(chosen.logprob), list(chosen.bytes), [_candidate(top) for top in entry.top]
    )


def _candidate(logprob: Logprob) -> TokenLogprobOut:
    return TokenLogprobOut(logprob.token, _finite(logprob.logprob), list(logprob.bytes))


def _top(entry: TokenLogprob, num_top: int) -> dict[str, float] | None:
    """Two tokens may decode to the same text, such as parts of characters: the likelier one stays."""
    if math.isnan(entry.chosen.logprob):
        return None
    found: dict[str, float] = {}
    for candidate in (*entry.top[:num_top], entry.chosen):
        found.setdefault(candidate.token, _finite(candidate.logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
