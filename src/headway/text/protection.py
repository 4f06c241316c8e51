"""Keeps control tokens that stand in a caller's strings from becoming control tokens in a rendered chat.

Before rendering each of them is put between two marks, characters that occur nowhere else; so is a string's end that
could become one together with what follows it. Afterwards the marks are taken out and what stood between them is
remembered as protected. A template may compare, cut, trim or dump the strings meanwhile: marks without their partner
are only taken out.
"""

import re
from collections.abc import Collection, Iterable

from headway.errors import InvalidRequest
from headway.text.rendered import RenderedPrompt

_MARKS = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))
"""Private use: no case, no white space, no meaning."""
_ESCAPED = re.compile(
    r"(?=(\\u[eE][0-9a-fA-F]{3}|\\u[fF][0-8][0-9a-fA-F]{2}|\\u[dD][bB][89a-fA-F][0-9a-fA-F]\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
"""Marks as JSON that is all ASCII writes them, wherever one begins."""


class Marks:
    """The two characters of one rendering."""

    def __init__(self, opening: str, closing: str) -> None:
        self.opening = opening
        self.closing = closing

    def escaped(self) -> re.Pattern[str]:
        """How JSON that is all ASCII writes them."""
        return re.compile("|".join(_escaped(mark) for mark in (self.opening, self.closing)))


class Protection:
    """Marks control tokens in strings, and reads the marks again.

    Args:
        control_tokens: the texts of a model's control tokens.
    """

    def __init__(self, control_tokens: Collection[str]) -> None:
        longest_first = sorted(control_tokens, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = {token[:length] for token in control_tokens for length in range(1, len(token))}
        self._max_beginning = max(map(len, self._beginnings), default=0)
        self._marked = self._beginnings | set(control_tokens)

    def is_needed(self, texts: Iterable[str]) -> bool:
        """Whether any of these has something to protect."""
        return any(self._tokens.search(text) or self._tail(text) for text in texts)

    def choose_marks(self, texts: Collection[str]) -> Marks:
        """Two characters that occur in none of the texts, written out or as JSON escapes them."""
        taken = {character for text in texts if not text.isascii() for character in set(text)}
        taken.update(chr(_code_of(found[1])) for text in texts if "\\u" in text for found in _ESCAPED.finditer(text))
        free = [mark for mark in map(chr, _MARKS) if mark not in taken][:2]
        if len(free) < 2:
            raise InvalidRequest("the messages use every private-use character of Unicode", param="messages")
        return Marks(*free)

    def mark(self, text: str, marks: Marks) -> str:
        """The text with each control token, and an end that could become one, between marks."""
        tail = self._tail(text)
        body = text[: len(text) - len(tail)]
        marked = self._tokens.sub(lambda match: f"{marks.opening}{match[0]}{marks.closing}", body)
        return f"{marked}{marks.opening}{tail}{marks.closing}" if tail else marked

    def read(self, rendered: str, marks: Marks) -> RenderedPrompt:
        """The rendered text without marks, and where they stood around something."""
        opening, closing = marks.opening, marks.closing
        rendered = marks.escaped().sub(lambda match: chr(_code_of(match[0])), rendered)
        pieces: list[str] = []
        protected: list[tuple[int, int]] = []
        length = last = 0
        for match in re.finditer(f"{opening}([^{opening}{closing}]*){closing}|[{opening}{closing}]", rendered):
            kept = rendered[last : match.start()]
            inner = match[1] or ""
            pieces += (kept, inner)
            length += len(kept)
            if inner in self._marked:
                protected.append((length, length + len(inner)))
            length += len(inner)
            last = match.end()
        pieces.append(rendered[last:])
        return RenderedPrompt("".join(pieces), tuple(protected))

    def _tail(self, text: str) -> str:
        """The longest end of the text that is the beginning of a control token; empty if there is none."""
        for length in range(min(self._max_beginning, len(text)), 0, -1):
            if text[-length:] in self._beginnings:
                return text[-length:]
        return ""


def _escaped(mark: str) -> str:
    units = mark.encode("utf-16-be")
    digits = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(rf"\\u(?i:{four})" for four in digits)


def _code_of(escaped: str) -> int:
    units = bytes.fromhex(escaped.replace("\\u", ""))
    return ord(units.decode("utf-16-be"))
