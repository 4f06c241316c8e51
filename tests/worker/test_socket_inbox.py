"""Whoever reads the socket, messages come once, in order. How processes end is tested of real ones (test_process)."""

import socket
from collections.abc import Iterator

import pytest

import headway_wire as wire
from headway.worker import socket_inbox
from headway.worker.socket_inbox import SocketInbox

WAIT_S = 20.0


class Pair:
    """An inbox and its parent's end."""

    def __init__(self) -> None:
        self.parent, self.child = socket.socketpair()
        self.inbox = SocketInbox(self.child)
        self.inbox.start()

    def send(self, data: bytes) -> None:
        self.parent.sendall(data)

    def take(self, *, is_blocking: bool = True, timeout_s: float | None = WAIT_S) -> list[str]:
        return [name_of(message) for message in self.inbox.take(is_blocking=is_blocking, timeout_s=timeout_s)]

    def take_one(self) -> str:
        """As the loop takes a Load: what is behind it stays."""
        return name_of(next(iter(self.inbox.take(is_blocking=True))))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    watched: list[socket.socket] = []
    monkeypatch.setattr(socket_inbox, "end_with_parent", watched.append)
    pair = Pair()
    yield pair
    assert watched == [pair.child]
    pair.parent.close()
    pair.child.close()


def frame(name: str) -> bytes:
    return wire.pack_frame(wire.encode(wire.Abort(request_id=name)))


def name_of(message: wire.Down) -> str:
    assert isinstance(message, wire.Abort)
    return message.request_id


def test_what_came_before_is_taken_first_wherever_it_was_read(pair: Pair) -> None:
    pair.send(frame("a") + frame("b"))
    assert pair.take_one() == "a"
    pair.inbox.take_over()
    pair.send(frame("c"))
    names: list[str] = []
    while len(names) < 2:
        names += pair.take()
    assert names == ["b", "c"]


@pytest.mark.parametrize("cut", range(len(frame("a")) + 1))
def test_a_message_that_is_cut_as_another_thread_takes_over_is_put_together(pair: Pair, cut: int) -> None:
    pair.send(frame("first") + frame("a")[:cut])
    assert pair.take_one() == "first"
    pair.inbox.take_over()
    pair.send(frame("a")[cut:] + frame("b"))
    names: list[str] = []
    while len(names) < 2:
        names += pair.take()
    assert names == ["a", "b"]


def test_who_has_work_to_do_waits_for_nothing_not_for_the_rest_of_a_message_either(pair: Pair) -> None:
    pair.inbox.take_over()
    assert pair.take(is_blocking=False, timeout_s=None) == []
    pair.send(frame("a") + frame("b")[:-1])
    assert pair.take(is_blocking=False, timeout_s=None) == ["a"]
    assert pair.take(is_blocking=False, timeout_s=None) == []
    pair.send(frame("b")[-1:])
    assert pair.take(is_blocking=False, timeout_s=None) == ["b"]


def test_who_has_none_waits_so_long(pair: Pair) -> None:
    pair.inbox.take_over()
    assert pair.take(timeout_s=0.001) == []
    pair.send(frame("a"))
    assert pair.take(timeout_s=None) == ["a"]


def test_more_than_one_read_s_bytes_are_one_message_and_what_is_behind_it_waits(pair: Pair) -> None:
    pair.inbox.take_over()
    large = wire.pack_frame(wire.encode(wire.Abort(request_id="x" * 3_000_000)))
    pair.parent.setblocking(False)
    rest, names = memoryview(large + frame("b")), list[str]()
    while len(names) < 2:
        if rest:
            rest = rest[pair.parent.send(rest) :]
        names += pair.take(is_blocking=False, timeout_s=None)
    assert [len(name) for name in names] == [3_000_000, 1]


def test_reading_is_counted_as_the_taker_s_processor_time(pair: Pair) -> None:
    pair.inbox.take_over()
    assert pair.inbox.cpu_s == 0.0
    pair.send(frame("a"))
    pair.take()
    assert 0.0 < pair.inbox.cpu_s < WAIT_S
