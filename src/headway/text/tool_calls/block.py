"""BlockParser: the ToolCallParser of every dialect. A dialect adds what its blocks begin with and how one is read.

An answer is free text and blocks. Free text is passed on but for white space at its end, which may be in front of a
block, and for what may become an opening. A block is read by the dialect's reader, which says what it found: begin,
add, finish. If the reader gives up, all that it took since the last call was finished is text.
"""

import itertools
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headway.core.tools import ToolCallDelta
from headway.text.held import num_held
from headway.text.tool_calls.base import Parsed
from headway.text.tool_calls.source import SPACE, Reading, Source, Unreadable


def make_call_id() -> str:
    """As OpenAI's look."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class Syntax:
    """What of a dialect its parser knows."""

    openings: tuple[str, ...]
    """Texts that a block begins with; none is the beginning of another."""
    read: Callable[["Block"], Reading[None]]
    """Reads a block from its opening on. Raises Unreadable."""
    is_marked: bool
    """All openings are markers, which stand for nothing else: a call is one whatever its name, and one that cannot be
    read is counted. Else (a brace) it is one only if a tool has its name."""
    is_head: Callable[[str, str], bool]
    """Whether a text is what the grammar has of a block up to the arguments of its first call: (text, its name)."""
    make_id: Callable[[], str] = make_call_id


class Answer:
    """What was read since it was last asked for."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._text: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._space: list[str] = []
        """White space that a call may follow."""
        self._is_behind_call = False

    def say(self, text: str) -> None:
        """Adds text."""
        said = text.rstrip(SPACE)
        if said:
            self._text += [*self._space, said]
            self._space = []
            self._is_behind_call = False
        if len(said) < len(text):
            self._space.append(text[len(said) :])

    def call(self, deltas: list[ToolCallDelta]) -> None:
        """Adds deltas of a call."""
        self._space = []
        self._is_behind_call = True
        self._calls += deltas

    def end(self) -> None:
        """Nothing follows."""
        if not self._is_behind_call:
            self._text += self._space
        self._space = []

    def take(self) -> Parsed:
        """What was added; joined as far as it can be."""
        if not self._text and not self._calls:
            return _NOTHING
        text, calls = "".join(self._text), _joined(self._calls)
        self._text, self._calls = [], []
        return Parsed(text, calls)


_NOTHING = Parsed("", ())


def _joined(deltas: list[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """With neighbouring pieces of the same arguments as one."""
    joined: list[ToolCallDelta] = []
    for (index, is_first), group in itertools.groupby(deltas, lambda delta: (delta.index, delta.id is not None)):
        same = list(group)
        joined += same if is_first else [ToolCallDelta(index, arguments="".join(each.arguments for each in same))]
    return tuple(joined)


class Block:
    """The reader's side of a BlockParser: where it reads from (source), and where it says what it found."""

    def __init__(self, syntax: Syntax, names: Collection[str], is_enforced: bool) -> None:
        self.source = Source()
        self.answer = Answer()
        self.is_marked = False
        """It began with a marker: see Syntax."""
        self.names = names
        """Of the tools that there are."""
        self.num_finished = 0
        """Calls of this block."""
        self.is_streamed = False
        """The block kept to the grammar up to its first call's arguments, and so the engine holds it to it."""
        self.is_certain = False
        """It is a call, whether it can be read or not."""
        self._syntax = syntax
        self._can_stream = is_enforced
        self._is_enforced = is_enforced
        self._kept: list[ToolCallDelta] = []
        """Deltas of a call that is not whole yet."""
        self._is_begun = False
        self._ids: set[str] = set()

    def open(self, *, is_genuine: bool) -> None:
        """A block begins; is_genuine: as the engine sees it too."""
        self._is_enforced = self._can_stream and is_genuine
        self.source.taken.clear()
        self.num_finished = 0
        self.is_streamed = False
        self.is_marked = self.is_certain = self._syntax.is_marked

    def mark(self) -> None:
        """The block began with a marker, where others of the dialect do not."""
        self.is_marked = self.is_certain = True

    def is_known(self, name: str) -> bool:
        """Whether a call may have this name: behind a marker any, which the client then is told of; else a tool's."""
        return self.is_marked or name in self.names

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call's arguments begin; none of their text is taken yet. call_id: as the model wrote it."""
        self.is_certain = self._is_begun = True
        if self._is_enforced and self.num_finished == 0 and name in self.names:
            self.is_streamed = self._syntax.is_head("".join(self.source.taken), name)
        self._put(ToolCallDelta(self.answer.num_calls, self._choose_id(call_id), name))

    def add(self, arguments: str) -> None:
        """A piece of the arguments' JSON."""
        if arguments:
            self._put(ToolCallDelta(self.answer.num_calls, arguments=arguments))

    def finish(self) -> None:
        """The call is whole and valid."""
        self._give(self._kept)
        self._kept = []
        self._is_begun = False
        self.num_finished += 1
        self.answer.num_calls += 1

    def _choose_id(self, call_id: str | None) -> str:
        """The model's own id, if no call before has it: so the conversation is rendered as the model wrote it."""
        if call_id is None or call_id in self._ids:
            call_id = self._syntax.make_id()
        self._ids.add(call_id)
        return call_id

    def give_up(self) -> None:
        """The call cannot be read: its text is text, but for what was streamed of it."""
        if self._is_begun and self.is_streamed:
            self.answer.num_calls += 1
        self._is_begun = False
        self._kept = []
        self.answer.say("".join(self.source.taken))

    def _put(self, delta: ToolCallDelta) -> None:
        if self.is_streamed:
            self._give([delta])
        else:
            self._kept.append(delta)

    def _give(self, deltas: list[ToolCallDelta]) -> None:
        self.answer.call(deltas)
        self.source.taken.clear()


class BlockParser:
    """See ToolCallParser.

    Args:
        syntax: the dialect's.
        names: of the tools that there are.
        is_enforced: the engine was given the dialect's trigger or grammar.
        specials: openings that count, for the engine, only as the special tokens that they are.
    """

    def __init__(
        self, syntax: Syntax, names: Collection[str], *, is_enforced: bool, specials: Collection[str] = ()
    ) -> None:
        self.num_unreadable = 0
        self._block = Block(syntax, names, is_enforced)
        self._syntax = syntax
        self._opening = re.compile("|".join(map(re.escape, syntax.openings)))
        self._specials = specials
        self._special_starts: set[int] = set()
        """Where in the source's text special tokens begin."""
        self._is_cut = False
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str, num_special: int = 0) -> Parsed:
        """Takes the next piece of the answer; num_special: its last so many characters are one special token."""
        source = self._block.source
        if text:
            if self._specials:
                moved = {start - source.at for start in self._special_starts}
                self._special_starts = {start for start in moved if start >= 0}
            source.feed(text)
            if num_special:
                self._special_starts.add(len(source.text) - num_special)
            self._reading.send(None)
        return self._block.answer.take()

    def end(self, is_cut: bool) -> Parsed:
        """What was held back; nothing may be pushed any more."""
        self._is_cut = is_cut
        self._block.source.is_ended = True
        next(self._reading, None)
        self._block.answer.end()
        return self._block.answer.take()

    def _read(self) -> Reading[None]:
        yield
        while (yield from self._find_opening()):
            self._block.open(is_genuine=self._is_genuine())
            try:
                yield from self._syntax.read(self._block)
            except Unreadable:
                self._give_up()

    def _is_genuine(self) -> bool:
        """Whether the opening that is next is one to the engine."""
        source = self._block.source
        is_special = any(source.text.startswith(special, source.at) for special in self._specials)
        return not is_special or source.at in self._special_starts

    def _give_up(self) -> None:
        is_over = self._block.source.is_ended and self._is_cut
        if self._block.is_certain and not is_over:
            self.num_unreadable += 1
        self._block.give_up()

    def _find_opening(self) -> Reading[bool]:
        """Says text up to an opening; False: the answer is over."""
        source, answer = self._block.source, self._block.answer
        while True:
            found = self._opening.search(source.text, source.at)
            if found:
                answer.say(source.take(found.start()))
                return True
            end = len(source.text)
            if not source.is_ended:
                end -= max(num_held(source.text, opening, source.at) for opening in self._syntax.openings)
            answer.say(source.take(end))
            source.taken.clear()
            if not (yield from source.more()):
                return False
