"""One choice's way from tokens to text: detokenise, look for stop strings, tell reasoning and tool calls from the text,
name the tokens of logprobs. And a prompt's.

Stop strings are looked for in the whole text, reasoning and calls included, as vLLM does. No asyncio: the worker client
and the offline LLM both push token events in and take TextDeltas out. What counts as output ends with the token that
completed the stop; tokens after it are overshoot.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import headway_wire as wire
from headway.core.output import FinishReason, Logprob, PromptOutput, TextDelta, TokenLogprob
from headway.core.sampling import SamplingParams
from headway.core.tools import ToolCallDelta
from headway.errors import InternalError
from headway.text.detokenizer import Detokenizer
from headway.text.stop import StopMatcher
from headway.text.tokenizer import Tokenizer
from headway.text.tool_calls.dialect import special_ids
from headway.worker.answer_parser import AnswerParser, Pieces
from headway.worker.constraining import OutputForm


class ChoiceAssembler:
    """The text of one choice, as far as it is. Gives exactly one delta with a finish_reason, its last.

    A stop string counts only where it lies wholly behind the first min_tokens tokens. The text of a token that ended
    the choice (an end token, one of stop_token_ids) is left out unless include_stop_str_in_output; the token counts.

    Args:
        form: how its text is read; None: as text alone.
    """

    __slots__ = (
        "_detokenizer",
        "_hidden_ids",
        "_parsed",
        "_parser",
        "_sampling",
        "_stop",
        "_tokenizer",
        "choice",
        "is_ended",
        "is_plain",
        "num_forced",
        "num_overshoot",
        "num_reasoning",
        "num_tokens",
    )

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, choice: int = 0, form: OutputForm | None = None
    ) -> None:
        self.choice = choice
        self.is_ended = False
        self.num_tokens = 0
        """Output tokens that count: what is billed."""
        self.num_overshoot = 0
        """Output tokens that were computed after the end."""
        self.num_reasoning = 0
        """Of num_tokens: its reasoning's, the marks around it included."""
        self.num_forced = 0
        """Of num_tokens: those that were not sampled."""
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special_tokens=sampling.skip_special_tokens,
            continues=True,
            shown=frozenset() if form is None else _marker_ids(tokenizer, form.markers),
        )
        self._stop = StopMatcher(sampling.stop, sampling.include_stop_str_in_output)
        self._parser = None if form is None else AnswerParser(form)
        self._parsed: list[Pieces] = []
        """What the parser made since the last delta."""
        self.is_plain = not sampling.stop and sampling.logprobs is None and form is None
        """Nothing to look for and nothing to name: the usual case, and the short way."""
        self._hidden_ids = tokenizer.special_token_ids if sampling.skip_special_tokens else frozenset()

    def push(self, event: wire.TokenEvent) -> TextDelta | None:
        """Takes one event; None if nothing came of it (after the end, or an event without tokens and end).

        A delta whose finish_reason is "stop" although the event's is None tells the caller to abort the choice.
        """
        if self.is_ended:
            self.num_overshoot += len(event.token_ids)
            return None
        token_ids = event.token_ids
        if self.is_plain and event.finish_reason is None and token_ids:
            self.num_tokens += len(token_ids)
            self.num_forced += event.num_forced_tokens
            return TextDelta(self.choice, self._detokenizer.push(token_ids), tuple(token_ids))
        if not token_ids and event.finish_reason is None:
            return None
        num_with_text = len(event.token_ids)
        if event.finish_reason == "stop" and num_with_text and self._leaves_out(event.token_ids[-1]):
            num_with_text -= 1
        text, num_used, matched = self._read(event.token_ids[:num_with_text])
        if matched is not None:
            self.num_overshoot += len(event.token_ids) - num_used
            return self._make_delta(event, num_used, text, "stop", matched)
        if event.finish_reason is None:
            return self._make_delta(event, len(event.token_ids), text, None, None)
        tail, matched = self._flush()
        reason: FinishReason = "stop" if matched is not None else _finish_reason(event.finish_reason)
        stop_reason = event.stop_reason if matched is None else matched
        return self._make_delta(event, len(event.token_ids), text + tail, reason, stop_reason, num_with_text)

    @property
    def held(self) -> bytes:
        """Of a plain choice: what its text has of a character that is not whole (Detokenizer.held)."""
        return self._detokenizer.held

    @held.setter
    def held(self, held: bytes) -> None:
        self._detokenizer.held = held

    def _leaves_out(self, last_id: int) -> bool:
        """Whether the text of the last token before a stop is no part of the answer; a grammar's end is one."""
        if self._sampling.include_stop_str_in_output:
            return False
        is_end = last_id in self._tokenizer.end_token_ids or last_id in self._sampling.stop_token_ids
        return is_end or self._sampling.constraint is None

    def end(self, finish_reason: FinishReason, stop_reason: int | str | None = None) -> TextDelta | None:
        """Ends the choice from this side, with the text that was held back; None if it has ended."""
        if self.is_ended:
            return None
        tail, matched = self._flush()
        self.is_ended = True
        if matched is not None:
            finish_reason, stop_reason = "stop", matched
        pieces = self._take_pieces(tail, finish_reason, stop_reason)
        return TextDelta(self.choice, pieces.text, (), (), finish_reason, stop_reason, *_untold(pieces))

    @property
    def num_unreadable(self) -> int:
        """Tool calls that could not be read, and became text."""
        return 0 if self._parser is None else self._parser.num_unreadable

    def drop(self) -> None:
        """Ends the choice without a word: nobody reads it any more."""
        self.is_ended = True

    def _read(self, token_ids: Sequence[int]) -> tuple[str, int, str | None]:
        """The text of the tokens, how many of them it took, and the stop string that was met.

        With a parser the text is told to it, token by token, and none is left.
        """
        if not self._sampling.stop and self._parser is None:
            return self._detokenizer.push(token_ids), len(token_ids), None
        parts = []
        for index, token_id in enumerate(token_ids):
            piece, matched = self._detokenizer.push((token_id,)), None
            if self._sampling.stop and self.num_tokens + index >= self._sampling.min_tokens:
                piece, matched = self._search(piece)
            parts.append(piece if self._parser is None else self._parse(self._parser, piece, token_id))
            if matched is not None:
                return "".join(parts), index + 1, matched
        return "".join(parts), len(token_ids), None

    def _search(self, piece: str) -> tuple[str, str | None]:
        match = self._stop.push(piece)
        return match.text, match.matched

    def _parse(self, parser: AnswerParser, piece: str, token_id: int) -> str:
        """Tells the parser one token's text; leaves none."""
        was_reasoning = parser.is_reasoning
        if piece:
            self._parsed.append(parser.push(piece, self._num_special(piece, token_id)))
        self.num_reasoning += was_reasoning or parser.is_reasoning
        return ""

    def _num_special(self, piece: str, token_id: int) -> int:
        """How many characters of one token's piece are a special token. Behind stop strings, which hold text back,
        nobody asks."""
        if token_id not in self._tokenizer.special_token_ids:
            return 0
        text = self._tokenizer.token_text(token_id)
        return len(text) if piece.endswith(text) else 0

    def _take_pieces(self, text: str, finish_reason: FinishReason | None, stop_reason: int | str | None) -> Pieces:
        """What a delta tells: `text`, or what the parser made of it and of what it was told before."""
        if self._parser is None:
            return Pieces("", text)
        parsed, self._parsed = self._parsed, []
        if text:
            parsed.append(self._parser.push(text))
        if finish_reason is not None:
            is_cut = finish_reason != "stop" or stop_reason is not None
            parsed.append(self._parser.end(is_cut=is_cut))
        if len(parsed) == 1:
            return parsed[0]
        return Pieces(
            "".join([pieces.reasoning for pieces in parsed]),
            "".join([pieces.text for pieces in parsed]),
            [call for pieces in parsed for call in pieces.tool_calls],
        )

    def _flush(self) -> tuple[str, str | None]:
        tail = self._detokenizer.flush()
        if not self._sampling.stop:
            return tail, None
        match = self._stop.push(tail)
        if match.matched is not None:
            return match.text, match.matched
        return match.text + self._stop.flush(), None

    def _make_delta(
        self,
        event: wire.TokenEvent,
        num_used: int,
        text: str,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        num_with_text: int | None = None,
    ) -> TextDelta:
        token_ids = tuple(event.token_ids[:num_used])
        logprobs: tuple[TokenLogprob, ...] = ()
        if event.logprobs:
            num_shown = num_used if num_with_text is None else num_with_text
            logprobs = tuple(
                self._name(token_id, entry, is_shown=index < num_shown)
                for index, (token_id, entry) in enumerate(zip(token_ids, event.logprobs, strict=False))
            )
        self.num_tokens += num_used
        self.num_forced += min(event.num_forced_tokens, num_used)
        self.is_ended = finish_reason is not None
        if self._parser is None:
            return TextDelta(self.choice, text, token_ids, logprobs, finish_reason, stop_reason)
        pieces = self._take_pieces(text, finish_reason, stop_reason)
        return TextDelta(self.choice, pieces.text, token_ids, logprobs, finish_reason, stop_reason, *_untold(pieces))

    def _name(self, token_id: int, entry: wire.TokenLogprobs, *, is_shown: bool) -> TokenLogprob:
        chosen = self._logprob(token_id, entry.logprob, is_shown=is_shown)
        top = tuple(
            self._logprob(top_id, logprob, is_shown=is_shown or top_id != token_id)
            for top_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True)
        )
        return TokenLogprob(chosen, top)

    def _logprob(self, token_id: int, logprob: float, *, is_shown: bool) -> Logprob:
        has_bytes = is_shown and token_id not in self._hidden_ids
        raw = self._tokenizer.token_bytes(token_id) if has_bytes else b""
        return Logprob(token_id, self._tokenizer.token_text(token_id), raw, logprob)


class PromptAssembler:
    """A prompt's text, and its log-probabilities as they come.

    Args:
        text: as the caller gave it; None: it is made of the ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, token_ids: tuple[int, ...], text: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._token_ids = token_ids
        self._text = text
        self._skips_special = sampling.skip_special_tokens
        self._logprobs: list[TokenLogprob] | None = None
        if sampling.prompt_logprobs is not None:
            self._logprobs = [TokenLogprob(self._logprob(token_ids[0], math.nan, is_first=True))]

    def push(self, message: wire.PromptLogprobs) -> None:
        """Takes the next ones. Raises InternalError where they are not those."""
        logprobs, start = self._logprobs, message.start
        if logprobs is None or start != len(logprobs) or start + len(message.logprobs) > len(self._token_ids):
            raise InternalError(f"the worker told log-probabilities of prompt token {start}, which was not its turn")
        for token_id, entry in zip(self._token_ids[start:], message.logprobs, strict=False):
            top = map(self._logprob, entry.top_ids, entry.top_logprobs)
            logprobs.append(TokenLogprob(self._logprob(token_id, entry.logprob), tuple(top)))

    def output(self) -> PromptOutput:
        """As far as it is."""
        text = self._text
        if text is None:
            text = self._tokenizer.decode(self._token_ids, skip_special_tokens=self._skips_special)
        return PromptOutput(text, self._token_ids, None if self._logprobs is None else tuple(self._logprobs))

    def _logprob(self, token_id: int, logprob: float, *, is_first: bool = False) -> Logprob:
        text = self._tokenizer.token_text(token_id)
        is_hidden = token_id in self._tokenizer.special_token_ids and self._skips_special
        if self._text is not None:
            # Control tokens of the caller's own text are in it; what the tokenizer put before it is not.
            is_hidden = is_first and (token_id,) == self._tokenizer.prefix[:1] and not self._text.startswith(text)
        return Logprob(token_id, text, b"" if is_hidden else self._tokenizer.token_bytes(token_id), logprob)


def _untold(pieces: Pieces) -> tuple[str, tuple[ToolCallDelta, ...]]:
    """TextDelta's last two fields."""
    return pieces.reasoning, tuple(pieces.tool_calls)


@lru_cache(maxsize=64)
def _marker_ids(tokenizer: Tokenizer, markers: frozenset[str]) -> frozenset[int]:
    return frozenset(special_ids(tokenizer, markers).values())


def _finish_reason(word: str) -> FinishReason:
    match word:
        case "stop" | "length" | "abort":
            return word
        case _:
            return "error"
