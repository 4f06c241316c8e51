"""AnswerParser: one choice's text on its way: reasoning, the answer's text and its tool calls, told apart as they come.

It stands behind the detokenizer and the stop strings, which see the whole text. Never raises: a parser's fault makes
the rest of the answer text, and is counted.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from headway.core.tools import ToolCallDelta
from headway.text.reasoning import ReasoningSplitter
from headway.text.tool_calls import ToolCallParser
from headway.worker.constraining import OutputForm

logger = logging.getLogger(__name__)


class Pieces(NamedTuple):
    """What a piece of the output was."""

    reasoning: str
    text: str
    tool_calls: Sequence[ToolCallDelta] = ()


class AnswerParser:
    """Of one choice."""

    __slots__ = ("_calls", "_num_failures", "_splitter")

    def __init__(self, form: OutputForm) -> None:
        self._splitter: ReasoningSplitter | None = None
        if form.reasoning is not None:
            self._splitter = form.reasoning.make_splitter(form.state)
        self._calls: ToolCallParser | None = None
        if form.dialect is not None:
            self._calls = form.dialect.make_parser(form.tools, is_enforced=form.is_enforced, tells_specials=True)
        self._num_failures = 0

    @property
    def is_reasoning(self) -> bool:
        """Up to what was pushed."""
        return self._splitter is not None and self._splitter.is_reasoning

    @property
    def num_unreadable(self) -> int:
        """Calls that could not be read and became text, faults of ours included."""
        return self._num_failures + (self._calls.num_unreadable if self._calls is not None else 0)

    def push(self, text: str, num_special: int = 0) -> Pieces:
        """Takes the next piece; num_special: its last so many characters are one special token."""
        reasoning = ""
        if self._splitter is not None:
            reasoning, text = self._splitter.push(text)
        if self._calls is None or not text:
            return Pieces(reasoning, text)
        return Pieces(reasoning, *self._parsed(self._calls, text, num_special=min(num_special, len(text))))

    def end(self, *, is_cut: bool) -> Pieces:
        """What was held back. is_cut: the output did not end by itself."""
        reasoning = text = ""
        if self._splitter is not None:
            reasoning, text = self._splitter.end(is_cut)
        if self._calls is None:
            return Pieces(reasoning, text)
        before, calls = self._parsed(self._calls, text) if text else ("", ())
        if self._calls is None:
            return Pieces(reasoning, before, calls)
        behind, more = self._parsed(self._calls, None, is_cut=is_cut)
        return Pieces(reasoning, before + behind, [*calls, *more])

    def _parsed(
        self, parser: ToolCallParser, text: str | None, *, is_cut: bool = False, num_special: int = 0
    ) -> tuple[str, Sequence[ToolCallDelta]]:
        """text None: the end."""
        try:
            return parser.end(is_cut) if text is None else parser.push(text, num_special)
        except Exception:
            # Tokens were generated and paid for: the answer goes on as text. Counted in num_unreadable.
            logger.exception("a tool call parser failed: the rest of the answer is told as text")
            self._num_failures += parser.num_unreadable + 1
            self._calls = None
            return text or "", ()
