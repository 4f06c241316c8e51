"""The fast path's parts against Python's own: its UTF-8 decoder, msgspec's JSON and msgpack, bisect."""

from bisect import bisect_left
from codecs import getincrementaldecoder
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import headway_wire as wire
from headway._native import (
    FastStream,
    FastStreams,
    HistogramCounts,
    Outlet,
    StreamedBody,
    TextEvents,
    TokenSpelling,
    TokenTimes,
    WriteQueue,
)

HEAD, TAIL = b"data: {", b"}\n\n"


class Way:
    """A stream "r" on its way to a body without chunks; its tokens are spelled as they are given."""

    def __init__(self, *tokens: bytes, special: frozenset[int] = frozenset(), held: bytes = b"") -> None:
        self.written: list[bytes] = []
        self.num_scheduled = 0
        self.queue = WriteQueue()
        outlet = Outlet(self, -1)  # type: ignore[arg-type]
        body = StreamedBody(self.queue, outlet, is_chunked=False, schedule=self.schedule)
        body.can_write = True
        self.gaps = HistogramCounts([1.0])
        self.stream = FastStream(
            TokenSpelling(len(tokens), tokens.__getitem__, list(special)), skips_special=bool(special)
        )
        self.stream.open(TextEvents(body, HEAD, TAIL, TokenTimes(0.0, 1, self.gaps)), held)
        self.streams = FastStreams()
        self.streams.add("r", self.stream)

    def schedule(self) -> None:
        self.num_scheduled += 1

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def take(self, *token_ids: int) -> bytes:
        """What becomes of the tokens of one event."""
        message = wire.encode(wire.Step(events=[wire.TokenEvent("r", 0, list(token_ids))]))
        assert wire.decode_up(self.streams.take(message, 1.0)) == wire.Step()
        self.written.clear()
        self.queue.flush()
        return b"".join(self.written)


def expected(text: str) -> bytes:
    return HEAD + msgspec.json.encode(text) + TAIL if text else b""


LEADS = st.sampled_from(
    [b"\xe2", b"\xf0\x9f", b"\xf4\x8f", b"\xed\x9f", b"\xe0\xa0", b"\xf4\x90", b"\xed\xa0", b"\xc2"]
)
PIECES = st.lists(st.binary(max_size=5) | LEADS | st.text(max_size=3).map(lambda text: text.encode(errors="replace")))


@given(PIECES)
@example([b"\xf0", b"\x9f\x91", b"\x8b"])
def test_text_is_what_pythons_decoder_makes_of_it_and_json_what_msgspec_writes(tokens: list[bytes]) -> None:
    way, decoder = Way(*tokens), getincrementaldecoder("utf-8")(errors="replace")
    for token_id, token in enumerate(tokens):
        assert way.take(token_id) == expected(decoder.decode(token))
    assert way.stream.close() == decoder.getstate()[0]


def test_every_character_is_written_as_msgspec_does() -> None:
    text = "".join(chr(code) for code in range(0x11000) if not 0xD800 <= code < 0xE000)
    assert Way(text.encode()).take(0) == expected(text)


def test_special_tokens_are_left_out_where_they_are_to_be() -> None:
    assert Way(b"a", b"<s>", b"b", special=frozenset({1})).take(0, 1, 2) == expected("ab")
    assert Way(b"a", b"<s>", b"b").take(0, 1, 2) == expected("a<s>b")


def test_what_was_held_back_elsewhere_is_gone_on_with() -> None:
    assert Way(b"\x8b", held=b"\xf0\x9f\x91").take(0) == expected("👋")
    with pytest.raises(ValueError, match="over 3 bytes"):
        Way(held=b"1234")


def test_a_token_that_can_not_be_spelled_is_left_and_so_is_the_stream() -> None:
    def spell(token_id: int) -> bytes:
        raise ZeroDivisionError("injected")

    way = Way()
    way.stream = FastStream(TokenSpelling(1, spell, []), skips_special=False)
    way.streams.add("r", way.stream)
    message = wire.encode(wire.Step(events=[wire.TokenEvent("r", 0, [0])]))
    assert way.streams.take(message, 1.0) is message


def test_a_turns_writes_are_scheduled_once() -> None:
    way = Way(b"a")
    message = wire.encode(wire.Step(events=[wire.TokenEvent("r", 0, [0])] * 3))
    way.streams.take(message, 1.0)
    way.streams.take(message, 2.0)
    assert way.num_scheduled == 1
    way.queue.flush()
    assert way.written == [expected("a") * 6]
    way.streams.take(message, 3.0)
    assert way.num_scheduled == 2


@given(st.lists(st.tuples(st.floats(0, 4), st.integers(1, 3))))
def test_a_value_is_counted_where_bisect_puts_it(values: list[tuple[float, int]]) -> None:
    bounds = [0.5, 1.0, 2.0]
    counts, by_hand, total = HistogramCounts(bounds), [0] * 4, 0.0
    for value, count in values:
        counts.observe(value, count)
        by_hand[bisect_left(bounds, value)] += count
        total += value * count
    assert (counts.in_bucket, counts.sum) == (by_hand, total)


def test_bounds_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        HistogramCounts([1.0, 0.5])


LOGPROBS = st.builds(wire.TokenLogprobs, st.floats(-9, 0), st.lists(st.integers(0, 300)), st.lists(st.floats(-9, 0)))
ERRORS = st.builds(wire.Error, kind=st.text(max_size=4), message=st.text(max_size=40))
TOKEN_EVENTS = st.builds(
    wire.TokenEvent,
    st.sampled_from(["r", "s" * 40, ""]),
    st.integers(0, 1),
    st.lists(st.sampled_from([0, 1, 127, 128, 255, 65535, 65536, 2**32]), max_size=20),
    st.none() | st.lists(LOGPROBS, max_size=2),
    st.sampled_from([None, None, "stop", "error"]),
    st.none() | st.integers().filter(lambda number: abs(number) < 2**63) | st.text(max_size=3),
    st.integers(0, 2**40),
    st.none() | ERRORS,
    st.integers(0, 300),
)


def is_plain(event: wire.TokenEvent) -> bool:
    said = (event.logprobs, event.finish_reason, event.stop_reason, event.error)
    return event.choice == 0 and bool(event.token_ids) and said == (None,) * 4


@given(st.lists(TOKEN_EVENTS, max_size=40), st.integers(0, 2**40), st.booleans())
def test_what_is_left_of_a_step_is_what_is_not_plain_or_behind_that(
    events: list[wire.TokenEvent], num_tokens: int, is_there: bool
) -> None:
    way = Way(b"a", b"b")
    if not is_there:
        way.streams.remove("r")
    step = wire.Step(events=events, num_running=len(events), num_tokens=num_tokens)
    left: list[wire.TokenEvent] = []
    is_open = is_there
    for event in events:
        if event.request_id == "r":
            is_open = is_open and is_plain(event)
        if event.request_id != "r" or not is_open:
            left.append(event)
    message = wire.encode(step)
    taken = way.streams.take(message, 1.0)
    assert wire.decode_up(taken) == msgspec.structs.replace(step, events=left)
    assert (taken is message) == (left == events)
    assert way.stream.num_tokens == sum(len(event.token_ids) for event in events if event not in left)


@given(st.lists(TOKEN_EVENTS, min_size=1, max_size=4), st.data())
def test_a_spoilt_message_is_left_as_it_is_or_stays_one(events: list[wire.TokenEvent], data: Any) -> None:
    spoilt = bytearray(wire.encode(wire.Step(events=events, num_running=1)))
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    message = bytes(spoilt[: data.draw(st.integers(0, len(spoilt)))])
    taken = Way(b"a", b"b").streams.take(message, 1.0)
    try:
        wire.decode_up(message)
    except msgspec.DecodeError:
        return
    assert isinstance(wire.decode_up(taken), wire.Step) or taken is message
