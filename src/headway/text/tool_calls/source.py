"""Source: an answer that is read as it comes.

Readers are generators, written as if the whole answer were there: where they need more of it they yield, and are
resumed with more, or at its end. What they decide depends on the characters alone, never on how those were cut.
"""

import string
from collections.abc import Callable, Generator
from typing import TypeVar

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""A reader that gives a _T."""
SPACE = " \t\r\n"
NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "_-.:/")
"""Of tools' names, where a form does not quote them."""
MAX_NAME_LENGTH = 256
_SPACES = frozenset(SPACE)


class Unreadable(Exception):
    """The answer is no call here. What the source has taken up to now is no part of one."""


class Source:
    """The text that was not taken yet, and what was taken since `taken` was last cleared."""

    __slots__ = ("at", "is_ended", "taken", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        """Where in `text` the next character is."""
        self.is_ended = False
        self.taken: list[str] = []

    def feed(self, text: str) -> None:
        """More of the answer."""
        self.text = self.text[self.at :] + text
        self.at = 0

    def take(self, end: int) -> str:
        """The text up to a place in `text`, which is now taken."""
        piece = self.text[self.at : end]
        if piece:
            self.taken.append(piece)
        self.at = end
        return piece

    def more(self) -> Reading[bool]:
        """Waits for more; False: there is no more."""
        if self.is_ended:
            return False
        yield
        return True

    def peek(self) -> Reading[str]:
        """The next character, not taken; empty at the end."""
        while self.at >= len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.at]

    def has(self, literal: str) -> Reading[bool]:
        """Whether the literal is next; it is not taken."""
        while True:
            if self.text.startswith(literal, self.at):
                return True
            if not literal.startswith(self.text[self.at : self.at + len(literal)]):
                return False
            if not (yield from self.more()):
                return False

    def expect(self, literal: str) -> Reading[None]:
        """Takes the literal, or what there is of it up to the first character that differs. Raises Unreadable."""
        for place, character in enumerate(literal):
            if self.at >= len(self.text) and (yield from self.peek()) == "":
                raise Unreadable(f"ends in front of {literal[place:]!r}")
            if self.text[self.at] != character:
                raise Unreadable(f"{self.text[self.at]!r} where {literal[place:]!r} belongs")
            self.take(self.at + 1)

    def skip(self, literal: str) -> Reading[bool]:
        """Takes the literal if it is next. One that the answer's end cuts short is taken too: nobody shall see it."""
        if (yield from self.has(literal)):
            self.take(self.at + len(literal))
            return True
        num_left = len(self.text) - self.at
        if self.is_ended and 0 < num_left < len(literal) and literal.startswith(self.text[self.at :]):
            self.take(len(self.text))
            return True
        return False

    def skip_space(self) -> Reading[None]:
        """Takes white space."""
        while (yield from self.peek()) in _SPACES:
            end = self.at + 1
            while end < len(self.text) and self.text[end] in _SPACES:
                end += 1
            self.take(end)

    def list_of(self, read: Callable[[], Reading[None]]) -> Reading[None]:
        """Takes a list in brackets, each item by `read`. One that the answer's end cuts short may lack its bracket."""
        yield from self.expect("[")
        while True:
            yield from self.skip_space()
            yield from read()
            yield from self.skip_space()
            if (yield from self.peek()) != ",":
                break
            yield from self.expect(",")
        if (yield from self.peek()):
            yield from self.expect("]")

    def name(self) -> Reading[str]:
        """Takes the characters of a name. Raises Unreadable for none, and for more than MAX_NAME_LENGTH."""
        word: list[str] = []
        while (character := (yield from self.peek())) in NAME_CHARACTERS:
            if len(word) == MAX_NAME_LENGTH:
                raise Unreadable(f"a name of over {MAX_NAME_LENGTH} characters")
            word.append(self.take(self.at + 1))
        if not word:
            raise Unreadable(f"{character!r} where a name belongs")
        return "".join(word)
