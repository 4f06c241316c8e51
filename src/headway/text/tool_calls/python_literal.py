"""Literals of Python, as models write them into calls, to JSON as they come."""

import json
import re
from collections.abc import Callable

from headway.text.tool_calls.source import Reading, Source, Unreadable

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 64
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ATOM_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_STRING_RUN = re.compile(r"[^\\'\"]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "/": "/"}
_ESCAPES |= {"\\": "\\", "'": "'", '"': '"', "\n": ""}
_NUM_HEX = {"x": 2, "u": 4, "U": 8}
_HEX = frozenset("0123456789abcdefABCDEF")
_OCTAL = frozenset("01234567")
_MAX_OCTAL = 3

Add = Callable[[str], object]


def read_literal(source: Source, add: Add, depth: int = 0) -> Reading[None]:
    """Takes one value and adds its JSON as it comes.

    Values are strings, numbers, True, False, None (or JSON's words for them), lists, tuples (as lists), and dicts whose
    keys are strings. Raises Unreadable for anything else, and for over 64 levels.
    """
    if depth > _MAX_DEPTH:
        raise Unreadable(f"over {_MAX_DEPTH} levels")
    character = yield from source.peek()
    if character in ("'", '"'):
        yield from _read_string(source, add)
    elif character in ("[", "(", "{"):
        yield from _read_items(source, add, character, depth)
    else:
        add((yield from _read_atom(source)))


def _read_atom(source: Source) -> Reading[str]:
    pieces: list[str] = []
    while (yield from source.peek()) in _ATOM_CHARACTERS:
        pieces.append(source.take(source.at + 1))
    atom = "".join(pieces)
    if atom in _WORDS:
        return _WORDS[atom]
    if not _NUMBER.fullmatch(atom):
        raise Unreadable(f"{atom[:20]!r} is no value")
    return atom


def _read_items(source: Source, add: Add, opener: str, depth: int) -> Reading[None]:
    """A list, tuple or dict; a comma may be behind the last item."""
    closer, is_dict = _CLOSERS[opener], opener == "{"
    source.take(source.at + 1)
    add("{" if is_dict else "[")
    is_first = True
    while True:
        yield from source.skip_space()
        if (yield from source.peek()) == closer:
            break
        if not is_first:
            add(", ")
        is_first = False
        if is_dict:
            yield from _read_key(source, add)
        yield from read_literal(source, add, depth + 1)
        yield from source.skip_space()
        if (yield from source.peek()) != closer:
            yield from source.expect(",")
    source.take(source.at + 1)
    add("}" if is_dict else "]")


def _read_key(source: Source, add: Add) -> Reading[None]:
    if (yield from source.peek()) not in ("'", '"'):
        raise Unreadable("a key that is no string")
    yield from _read_string(source, add)
    yield from source.skip_space()
    yield from source.expect(":")
    yield from source.skip_space()
    add(": ")


def _read_string(source: Source, add: Add) -> Reading[None]:
    quote = source.take(source.at + 1)
    add('"')
    while (character := (yield from source.peek())) != quote:
        if not character:
            raise Unreadable("the string has no end")
        if character == "\\":
            yield from _read_escape(source, add)
            continue
        run = _STRING_RUN.match(source.text, source.at)
        end = run.end() if run and run.end() > source.at else source.at + 1
        add(json_inside(source.take(end)))
    source.take(source.at + 1)
    add('"')


def _read_escape(source: Source, add: Add) -> Reading[None]:
    source.take(source.at + 1)
    if not (character := (yield from source.peek())):
        raise Unreadable("the string has no end")
    if character in _OCTAL:
        add(_json_escape(int((yield from _read_digits(source, _OCTAL, _MAX_OCTAL)), 8)))
        return
    if character not in _ESCAPES and character not in _NUM_HEX:
        add("\\\\")  # Python keeps the backslash of an escape that it does not know.
        return
    source.take(source.at + 1)
    if character in _ESCAPES:
        add(json_inside(_ESCAPES[character]))
        return
    digits = yield from _read_digits(source, _HEX, _NUM_HEX[character])
    if len(digits) < _NUM_HEX[character]:
        raise Unreadable("an escape that is not whole")
    add(_json_escape(int(digits, 16)))


def _read_digits(source: Source, allowed: frozenset[str], max_length: int) -> Reading[str]:
    digits = ""
    while len(digits) < max_length and (yield from source.peek()) in allowed:
        digits += source.take(source.at + 1)
    return digits


def _json_escape(code: int) -> str:
    """\\u escapes stay as they are: two may make one character."""
    if code > 0x10FFFF:
        raise Unreadable(f"there is no character {code:#x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else json_inside(chr(code))


def json_inside(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def literal_json(text: str) -> str | None:
    """The JSON of a text that is one literal, with white space around it at most; None if it is none."""
    source, pieces = Source(), list[str]()
    source.feed(text.strip())
    source.is_ended = True
    try:
        for _ in read_literal(source, pieces.append):
            raise AssertionError  # A source that is ended is never waited for.
    except Unreadable:
        return None
    return "".join(pieces) if source.at == len(source.text) else None
