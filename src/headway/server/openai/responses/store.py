"""ResponseStore: what was answered, for next turns. Bounded in number and bytes; it lives with the process.

A turn holds the turn before it, so that a conversation goes on as long as its last turn is kept:

    responses by id     resp_1    resp_2      resp_3        the longest unused is let go first, by its id
                          │         │           │
    turns              turn 1 ◄── turn 2 ◄── turn 3         bytes count as long as anything holds the turn
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from headway.observe.logs import get_logger
from headway.server.openai.responses.schema import Item, MessageItem, OutputText, ResponseOut

log = get_logger("headway.server")

OVERHEAD_BYTES = 1024
"""What a turn takes beside its texts."""

_encoder = msgspec.json.Encoder()
_items = msgspec.json.Decoder(list[Item])


@dataclass(slots=True, eq=False)
class Turn:
    """One request and its response, as JSON. Its items are decoded where they are asked for."""

    response: bytes
    """ResponseOut, as it was answered."""
    input: bytes
    """The request's own items."""
    output: bytes
    """The response's, without log-probabilities, which no next turn reads and which are most of its bytes."""
    previous: "Turn | None" = None
    num_holders: int = field(default=0, init=False)
    """Of the store's: the id, and turns that go on from this one."""

    @property
    def num_bytes(self) -> int:
        """Of this turn alone."""
        return len(self.response) + len(self.input) + len(self.output) + OVERHEAD_BYTES

    def input_items(self) -> list[Item]:
        """The request's."""
        return _items.decode(self.input)

    def history(self) -> list[Item]:
        """All items of the conversation up to this turn's end."""
        turns = reversed(list(_chain(self)))
        return [item for turn in turns for own in (turn.input, turn.output) for item in _items.decode(own)]


def make_turn(response: ResponseOut, items: list[Item], previous: Turn | None) -> Turn:
    """The turn of a response and the items of its request."""
    output = [_without_logprobs(item) for item in response.output]
    return Turn(_encoder.encode(response), _encoder.encode(items), _encoder.encode(output), previous)


def _without_logprobs(item: Item) -> Item:
    if not isinstance(item, MessageItem):
        return item
    return msgspec.structs.replace(item, content=[OutputText(part.text) for part in item.content])


class ResponseStore:
    """Turns by their response's id and owner: nobody finds another's. Not for several threads.

    Args:
        max_bytes, max_responses: 0: nothing is kept.
    """

    def __init__(self, max_bytes: int, max_responses: int) -> None:
        self.max_bytes = max_bytes
        self.max_responses = max_responses
        self.num_bytes = 0
        """Of all turns that are held."""
        self._turns: OrderedDict[tuple[bytes, str], Turn] = OrderedDict()
        """The longest unused first."""

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self.max_bytes > 0 and self.max_responses > 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, owner: bytes, response_id: str, turn: Turn) -> None:
        """Keeps the turn, and lets go what is over the limits then; a conversation over max_bytes is not kept."""
        if not self.is_on:
            return
        num_bytes = sum(each.num_bytes for each in _chain(turn))
        if num_bytes > self.max_bytes:
            log.warning("a conversation is over the store's size and not kept", bytes=num_bytes, limit=self.max_bytes)
            return
        self._turns[owner, response_id] = turn
        self._hold(turn)
        while self.num_bytes > self.max_bytes or len(self._turns) > self.max_responses:
            _, oldest = self._turns.popitem(last=False)
            self._release(oldest)

    def get(self, owner: bytes, response_id: str) -> Turn | None:
        """The turn, which counts as used now; None if it is not there, or another's."""
        turn = self._turns.get((owner, response_id))
        if turn is not None:
            self._turns.move_to_end((owner, response_id))
        return turn

    def delete(self, owner: bytes, response_id: str) -> bool:
        """Whether it was there. Turns that go on from it keep its items."""
        turn = self._turns.pop((owner, response_id), None)
        if turn is not None:
            self._release(turn)
        return turn is not None

    def count_bytes(self) -> int:
        """The bytes of all turns that can be reached, counted anew: num_bytes."""
        return sum(turn.num_bytes for turn in {each for turn in self._turns.values() for each in _chain(turn)})

    def _hold(self, turn: Turn) -> None:
        """One holder more; what nobody held before holds its own previous turn from now on."""
        for each in _chain(turn):
            each.num_holders += 1
            if each.num_holders > 1:
                return
            self.num_bytes += each.num_bytes

    def _release(self, turn: Turn) -> None:
        for each in _chain(turn):
            each.num_holders -= 1
            if each.num_holders > 0:
                return
            self.num_bytes -= each.num_bytes


def _chain(turn: Turn) -> Iterator[Turn]:
    """The turn, the one before it, and so on."""
    each: Turn | None = turn
    while each is not None:
        yield each
        each = each.previous
