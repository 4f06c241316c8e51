"""Script: what a scripted model answers, and where it fails. Plain data: it travels to a real child in Load.options.

A script's vocabulary is worked out by hand: ids 0 to 255 are the bytes of that value, then come the control tokens of
CONTROL_TOKENS, then the tokens of more than one byte that the script names, in the order of words().
"""

from collections.abc import Iterable
from typing import Any

import msgspec

import headway_wire as wire

CONTROL_TOKENS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
END_TOKEN_ID = 256
FIRST_WORD_ID = 256 + len(CONTROL_TOKENS)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt is answered with. A *position* is a number of output tokens: 0 is before the first."""

    tokens: list[bytes] = []
    """One entry a token; then comes the end token."""
    by_choice: dict[int, list[bytes]] = {}
    """Tokens of the choices that say something else."""
    is_endless: bool = False
    """After the last token comes the first again, until max_tokens."""
    tokens_per_step: int = 1
    delay_s: float = 0.0
    """The worker really sleeps so long before each step: for tests of real processes."""
    gates: dict[int, str] = {}
    """At a position: the sequence waits until the gate of that name is open."""
    num_cached_tokens: int = 0
    refusal: wire.Error | None = None
    """Never accepted."""
    error_at: int | None = None
    """At a position: the sequence ends with an error event."""
    raise_at: int | None = None
    """At a position: an exception escapes the predictor."""
    hang_at: int | None = None
    """At a position: the step never ends."""
    exit_at: int | None = None
    """At a position: the process is gone, without a word. Only in a process of its own."""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted model."""

    reply: Reply = msgspec.field(default_factory=lambda: say("Hello!"))
    replies: dict[str, Reply] = {}
    """The first whose key is in the prompt's text (its bytes; control tokens left out) is played; else `reply`."""
    words: list[bytes] = []
    """More tokens for the vocabulary."""
    max_model_len: int = 4096
    max_num_seqs: int = 64
    phases: tuple[str, ...] = ("read", "build", "warm")
    step_token_s: float = 0.0
    """What the worker says that a token takes in a step."""
    load_error: wire.Error | None = None
    load_raises: str | None = None
    """The load fails with an exception that is no HeadwayError."""
    load_waits_for: str | None = None
    """A path: in the last phase the load waits until something is there."""
    generation_defaults: dict[str, Any] = {}
    tool_call_parser: str = "auto"
    """As --tool-call-parser; auto: hermes, which the scripted chat template shows."""
    reasoning_parser: str = "none"
    """As --reasoning-parser. The template opens a block where enable_thinking is true, and has a closed one where it is
    false."""
    is_enforced: bool = False
    """Replies are said to keep to the constraints that they are given, which a script does not look at."""


def words(script: Script) -> list[bytes]:
    """The tokens of more than one byte: of `words`, then of the replies in order, each once."""
    replies = [script.reply, *script.replies.values()]
    said = [token for reply in replies for tokens in (reply.tokens, *reply.by_choice.values()) for token in tokens]
    return list(dict.fromkeys(token for token in [*script.words, *said] if len(token) > 1))


def token_ids(script: Script, tokens: Iterable[bytes]) -> list[int]:
    """The ids of a reply's tokens."""
    known = {word: FIRST_WORD_ID + place for place, word in enumerate(words(script))}
    return [token[0] if len(token) == 1 else known[token] for token in tokens]


def say(text: str, **fields: Any) -> Reply:
    """A reply of one token a byte."""
    return Reply(tokens=[bytes((byte,)) for byte in text.encode()], **fields)
