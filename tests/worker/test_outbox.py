"""Messages go out in order and whole, whether the socket takes them at once or not, and the sender never waits."""

import socket
import threading

import pytest

import headway_wire as wire
from headway.worker import outbox as outbox_module
from headway.worker.outbox import Outbox


def read_all(connection: socket.socket, num: int) -> list[wire.Up]:
    frames, messages = wire.FrameReader(), list[wire.Up]()
    while len(messages) < num:
        messages += [wire.decode_up(payload) for payload in frames.feed(connection.recv(1 << 16))]
    assert frames.num_pending_bytes == 0
    return messages


def step(number: int, num_ids: int = 1) -> wire.Step:
    return wire.Step(events=[wire.TokenEvent("r", 0, [number] * num_ids)])


def test_a_message_is_written_by_the_sender_where_the_socket_takes_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(ours)  # its writer is never started
        for number in range(3):
            outbox.send(step(number))
        assert read_all(theirs, 3) == [step(0), step(1), step(2)]


def test_several_messages_are_one_write() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)  # a read is a write
    with ours, theirs:
        Outbox(ours).send(step(0), step(1), step(2))
        frames = wire.FrameReader()
        assert [wire.decode_up(payload) for payload in frames.feed(theirs.recv(1 << 16))] == [step(0), step(1), step(2)]


def test_what_a_reader_leaves_in_the_socket_waits_in_order_and_the_sender_goes_on() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with ours, theirs:
        outbox = Outbox(ours)
        outbox.start()
        sent = [step(number, num_ids=2000) for number in range(200)]
        for message in sent:  # far more than the socket holds; nobody reads
            outbox.send(message)
        assert read_all(theirs, 200) == sent
        outbox.send(step(1))
        outbox.flush()
        assert read_all(theirs, 1) == [step(1)]


def test_a_parent_that_is_gone_is_no_error_of_the_sender() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        outbox = Outbox(ours)
        outbox.start()
        outbox.send(step(0))
        outbox.send(step(1))
        outbox.flush()
        assert not any(thread.name == "writer" and thread.is_alive() for thread in threading.enumerate())


def test_a_message_that_can_not_be_encoded_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        assert code == 1
        raise Ended

    monkeypatch.setattr(outbox_module.os, "_exit", end)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Ended):
        Outbox(ours).send(wire.Stats(values={"x": object()}))  # type: ignore[dict-item]
