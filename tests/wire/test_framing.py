"""Frames come out whole, wherever the stream was cut on its way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway_wire as wire
from headway_wire import framing

PAYLOADS = [b"", b"a", b"\x00" * 5, b"last one"]
STREAM = b"".join(map(wire.pack_frame, PAYLOADS))


def test_a_frame_is_its_length_in_four_bytes_little_endian_and_its_payload() -> None:
    assert wire.pack_frame(b"abc") == b"\x03\x00\x00\x00abc"


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_in_two_gives_the_same_frames(cut: int) -> None:
    reader = wire.FrameReader()
    assert [*reader.feed(STREAM[:cut]), *reader.feed(STREAM[cut:])] == PAYLOADS
    assert reader.num_pending_bytes == 0


def test_a_stream_that_comes_byte_by_byte_gives_the_same_frames() -> None:
    reader = wire.FrameReader()
    assert [payload for byte in STREAM for payload in reader.feed(bytes((byte,)))] == PAYLOADS


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_any_stream_cut_anywhere_gives_the_same_frames(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(wire.pack_frame, payloads))
    reader, found, start = wire.FrameReader(), list[bytes](), 0
    while start < len(stream):
        end = data.draw(st.integers(start + 1, len(stream)))
        found += reader.feed(stream[start:end])
        start = end
    assert found == payloads


def test_a_cut_frame_shows_as_pending_bytes() -> None:
    reader = wire.FrameReader()
    assert list(reader.feed(STREAM[:-1])) == PAYLOADS[:-1]
    assert reader.num_pending_bytes == 4 + len(PAYLOADS[-1]) - 1


def test_frames_that_the_reader_of_the_iterator_left_are_not_lost() -> None:
    reader = wire.FrameReader()
    frames = reader.feed(STREAM)
    assert next(frames) == PAYLOADS[0]
    frames.close()
    assert list(reader.feed(b"")) == PAYLOADS[1:]


def test_a_length_over_the_limit_is_refused_before_anything_is_allocated() -> None:
    reader = wire.FrameReader()
    frames = reader.feed(wire.pack_frame(b"good") + b"\xff\xff\xff\xff")
    assert next(frames) == b"good"
    with pytest.raises(wire.FrameTooLarge, match=r"4294967295.*268435456"):
        next(frames)


def test_a_payload_over_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MAX_FRAME_BYTES", 3)
    assert wire.pack_frame(b"abc")
    with pytest.raises(wire.FrameTooLarge, match=r"4 bytes.*limit of 3"):
        wire.pack_frame(b"abcd")
