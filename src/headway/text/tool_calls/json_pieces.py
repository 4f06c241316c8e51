"""JsonScanner: follows one JSON value (RFC 8259, strictly) through text that comes in pieces, and finds its end."""

import re
from collections.abc import Callable
from enum import Enum, auto

from headway.text.tool_calls.source import Reading, Source, Unreadable

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE_RUN = re.compile(r"[ \t\r\n]*")
_ATOM_RUN = re.compile(r"[-+.0-9A-Za-z]*")
_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")


class _State(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    """A value, or the end of a list."""
    KEY = auto()
    FIRST_KEY = auto()
    """A key, or the end of an object."""
    COLON = auto()
    BEHIND_VALUE = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    ATOM = auto()
    """A number, true, false or null."""
    DONE = auto()


class JsonScanner:
    """Where in its value it is. White space before the value belongs to it; what is behind it is not looked at."""

    __slots__ = ("_atom", "_closers", "_is_key", "_num_hex", "_state")

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._closers: list[str] = []
        self._is_key = False
        self._num_hex = 0
        self._atom: list[str] = []
        """Pieces of a number, or of true, false, null."""

    @property
    def is_done(self) -> bool:
        """The value is complete. A number at the top is only when something follows it, or `end` was called."""
        return self._state is _State.DONE

    def push(self, text: str, at: int) -> int:
        """Goes on from a place in the text: to its end, to the value's, or to the first character that is wrong.

        The last is known by its place: before the text's end, with is_done False.
        """
        while at < len(text) and self._state is not _State.DONE:
            end = self._step(text, at)
            if end is None:
                return at
            at = end
        return at

    def end(self) -> None:
        """The text is over."""
        if self._state is _State.ATOM and not self._closers and _ATOM.fullmatch("".join(self._atom)):
            self._state = _State.DONE

    def _step(self, text: str, at: int) -> int | None:
        """Goes on by at least one character, or changes state; None for a character that is wrong."""
        match self._state:
            case _State.STRING:
                return self._in_string(text, at)
            case _State.ESCAPE:
                return self._escape(text[at], at)
            case _State.HEX:
                if text[at] not in _HEX:
                    return None
                self._num_hex -= 1
                self._state = _State.HEX if self._num_hex else _State.STRING
                return at + 1
            case _State.ATOM:
                return self._in_atom(text, at)
        space = _SPACE_RUN.match(text, at)
        if space and space.end() > at:
            return space.end()
        return at + 1 if self._structure(text[at]) else None

    def _in_string(self, text: str, at: int) -> int | None:
        run = _STRING_RUN.match(text, at)
        if run and run.end() > at:
            return run.end()
        if text[at] == "\\":
            self._state = _State.ESCAPE
        elif text[at] != '"':
            return None
        elif self._is_key:
            self._state = _State.COLON
        else:
            self._behind_value()
        return at + 1

    def _escape(self, character: str, at: int) -> int | None:
        if character == "u":
            self._state, self._num_hex = _State.HEX, 4
        elif character in '"\\/bfnrt':
            self._state = _State.STRING
        else:
            return None
        return at + 1

    def _in_atom(self, text: str, at: int) -> int | None:
        run = _ATOM_RUN.match(text, at)
        if run and run.end() > at:
            self._atom.append(run[0])
            return run.end()
        if not _ATOM.fullmatch("".join(self._atom)):
            return None
        self._behind_value()
        return at

    def _structure(self, character: str) -> bool:
        """Takes a character outside of strings and atoms; whether it may stand there."""
        match self._state:
            case _State.FIRST_ITEM | _State.FIRST_KEY if character == self._closers[-1]:
                self._closers.pop()
                self._behind_value()
            case _State.VALUE | _State.FIRST_ITEM:
                return self._begin_value(character)
            case _State.KEY | _State.FIRST_KEY if character == '"':
                self._state, self._is_key = _State.STRING, True
            case _State.COLON if character == ":":
                self._state = _State.VALUE
            case _State.BEHIND_VALUE if character == ",":
                self._state = _State.KEY if self._closers[-1] == "}" else _State.VALUE
            case _State.BEHIND_VALUE if character == self._closers[-1]:
                self._closers.pop()
                self._behind_value()
            case _:
                return False
        return True

    def _begin_value(self, character: str) -> bool:
        if character == "{":
            self._closers.append("}")
            self._state = _State.FIRST_KEY
        elif character == "[":
            self._closers.append("]")
            self._state = _State.FIRST_ITEM
        elif character == '"':
            self._state, self._is_key = _State.STRING, False
        elif character == "-" or (character.isalnum() and character.isascii()):
            self._state, self._atom = _State.ATOM, [character]
        else:
            return False
        return True

    def _behind_value(self) -> None:
        self._state = _State.BEHIND_VALUE if self._closers else _State.DONE


def read_json(source: Source, add: Callable[[str], object]) -> Reading[None]:
    """Takes one JSON value and adds its text as it comes. Raises Unreadable at the first character that is wrong."""
    scanner = JsonScanner()
    while True:
        end = scanner.push(source.text, source.at)
        if end > source.at:
            add(source.take(end))
        if scanner.is_done:
            return
        if end < len(source.text):
            raise Unreadable(f"{source.text[end]!r} in JSON")
        if not (yield from source.more()):
            scanner.end()
            if scanner.is_done:
                return
            raise Unreadable("the JSON has no end")


def read_json_text(source: Source) -> Reading[str]:
    """One JSON value, whole."""
    pieces: list[str] = []
    yield from read_json(source, pieces.append)
    return "".join(pieces)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, with white space around it at most."""
    scanner = JsonScanner()
    end = scanner.push(text, 0)
    scanner.end()
    return scanner.is_done and not text[end:].strip(" \t\r\n")
