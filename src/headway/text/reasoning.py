"""ReasoningStyle: how a model marks its reasoning; ReasoningSplitter, which tells it from the answer as it comes."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headway.errors import InvalidConfig
from headway.text.held import num_held
from headway.text.tokenizer import Tokenizer

STYLE_NAMES = ("qwen3", "deepseek_r1", "none")
"""For --reasoning-parser."""
_START, _END = "<think>", "</think>"
_LINE_BREAKS = "\n"
"""What templates drop around the tags, and put there."""
_DEEPSEEK_TURN = "<｜Assistant｜>"
_SWITCH = re.compile(r"enable_thinking|reasoning_content")
_OPENED_BY_TEMPLATE = re.compile(r"<think>(?!(?:\\n|\s)*</think>)")


class ReasoningState(Enum):
    """Where an output begins."""

    OPEN = "open"
    """Inside of reasoning: the prompt ends with an open block."""
    CLOSED = "closed"
    """Behind it: the prompt ends with a closed block, which says that there shall be none."""
    UNOPENED = "unopened"
    """The prompt says nothing: the model opens a block, or does not."""


class Split(NamedTuple):
    """What a piece of an output was. What can still become a tag is held back."""

    reasoning: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """One model's."""

    name: str
    opening: str
    """wire.Constraint.opening, where the state is UNOPENED and the model shall reason; "": it is not made to."""
    markers: frozenset[str]
    """The tags that are special tokens: the splitter has to see them although skip_special_tokens."""
    start: str = _START
    end: str = _END
    """wire.Constraint.reasoning_end."""

    def state(self, prompt: str, continued: str | None = None) -> ReasoningState:
        """Where the output begins.

        Args:
            prompt: as the template rendered it.
            continued: content of the last message, if it is an assistant's that is not ended (continue_final_message).
        """
        if continued:
            return self._continued_state(continued)
        prompt = prompt.rstrip()
        if prompt.endswith(self.end):
            return ReasoningState.CLOSED
        return ReasoningState.OPEN if prompt.endswith(self.start) else self._unsaid

    def _continued_state(self, text: str) -> ReasoningState:
        """An assistant's message that was begun with text is one without reasoning."""
        if self.end in text:
            return ReasoningState.CLOSED
        return ReasoningState.OPEN if text.lstrip().startswith(self.start) else ReasoningState.CLOSED

    @property
    def _unsaid(self) -> ReasoningState:
        """DeepSeek R1 reasons without being told to, and some of its templates do not open the block."""
        return ReasoningState.OPEN if self.name == "deepseek_r1" else ReasoningState.UNOPENED

    def make_splitter(self, state: ReasoningState) -> "ReasoningSplitter":
        """For one choice."""
        return ReasoningSplitter(self, state)


class ReasoningSplitter:
    """One choice's output on its way: reasoning, and the text behind it.

    The pieces of each joined are the same however the output is cut. Line breaks directly around the tags are dropped,
    as templates drop them and put them back.
    """

    def __init__(self, style: ReasoningStyle, state: ReasoningState) -> None:
        self.is_reasoning = state is ReasoningState.OPEN
        """What was pushed up to now ends inside of reasoning."""
        self._style = style
        self._may_open = state is not ReasoningState.CLOSED
        """A start tag at the beginning is one: a block that is open already may be opened once more by the model."""
        self._is_first = True
        """Nothing of the reasoning, or of the text behind it, was given yet."""
        self._is_behind = False
        """Text that follows is behind an end tag."""
        self._held = ""

    def push(self, text: str) -> Split:
        """Takes the next piece of the output."""
        if not (self._may_open or self.is_reasoning or self._is_behind):
            return Split("", text)
        self._held += text
        if self._may_open and not self._open():
            return Split("", "")
        reasoning = self._take_reasoning() if self.is_reasoning else ""
        return Split(reasoning, "" if self.is_reasoning else self._take_text())

    def end(self, is_cut: bool) -> Split:
        """What was held back; is_cut: the output ended by a limit, so that half an end tag is not shown."""
        held, self._held = self._held, ""
        self._may_open = False
        if not self.is_reasoning:
            return Split("", held)
        return Split(_without_half_tag(held, self._style.end) if is_cut else held, "")

    def _open(self) -> bool:
        """Looks for the start tag; whether it is decided."""
        begun = self._held.lstrip()
        if not begun or (len(begun) < len(self._style.start) and self._style.start.startswith(begun)):
            return False
        self._may_open = False
        if begun.startswith(self._style.start):
            self.is_reasoning = True
            self._held = begun[len(self._style.start) :]
        return True

    def _take_reasoning(self) -> str:
        if self._is_first:
            self._held = self._held.lstrip(_LINE_BREAKS)
            self._is_first = not self._held
        reasoning, tag, behind = self._held.partition(self._style.end)
        if tag:
            self.is_reasoning, self._is_first, self._is_behind = False, True, True
            self._held = behind
            return reasoning.rstrip(_LINE_BREAKS)
        kept = _without_half_tag(reasoning, self._style.end).rstrip(_LINE_BREAKS)
        self._held = reasoning[len(kept) :]
        return kept

    def _take_text(self) -> str:
        text, self._held = self._held, ""
        if self._is_behind:
            text = text.lstrip(_LINE_BREAKS)
            self._is_behind = not text
        return text


def _without_half_tag(text: str, tag: str) -> str:
    """Text without the beginning of a tag at its end."""
    return text[: len(text) - num_held(text, tag)]


def choose_reasoning(template: str, tokenizer: Tokenizer, name: str | None = None) -> ReasoningStyle | None:
    """The style of a model; None: it does not reason, or its marks are not known. Pure.

    Args:
        template: the source of its chat template.
        tokenizer: tells which tags are special tokens.
        name: --reasoning-parser; None: the one that the template tells.

    Raises:
        InvalidConfig: there is no style of this name.
    """
    if name is not None and name not in STYLE_NAMES:
        raise InvalidConfig(
            f"--reasoning-parser is {name!r}; it must be one of {', '.join(STYLE_NAMES)}", param="reasoning_parser"
        )
    chosen = name or _told_by(template)
    if chosen == "none":
        return None
    special = (tag for tag in (_START, _END) if _is_special(tokenizer, tag))
    return ReasoningStyle(chosen, _opening(template), frozenset(special))


def _told_by(template: str) -> str:
    if _END not in template:
        return "none"
    return "deepseek_r1" if _DEEPSEEK_TURN in template else "qwen3"


def _opening(template: str) -> str:
    """What a model writes that opens its blocks itself, because its template never does."""
    # DeepSeek's blocks are open anyway: see ReasoningStyle.state.
    if _DEEPSEEK_TURN in template:
        return ""
    prompt_end = template.rpartition("add_generation_prompt")[2]
    is_model_s = _START in template and _SWITCH.search(template) and not _OPENED_BY_TEMPLATE.search(prompt_end)
    return f"{_START}\n" if is_model_s else ""


def _is_special(tokenizer: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False, parse_special=True)
    return len(ids) == 1 and ids[0] in tokenizer.special_token_ids
