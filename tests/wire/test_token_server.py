"""A predictor that speaks tokens behind headway_wire alone: each message's answer, in order, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headway_wire as wire
from headway_wire.connection import Connection, ParentGone
from headway_wire.predictor import PredictorError
from headway_wire.token_server import TokenPredictor, TokenServer

WAIT_S = 30.0


class Counting(TokenPredictor):
    """Each request gets its prompt's tokens again, one a step, and then its end; an empty prompt is refused."""

    def __init__(self) -> None:
        self.left: dict[str, list[int]] = {}

    def submit(self, request: wire.Submit) -> None:
        if not request.prompt_token_ids:
            raise PredictorError("InvalidRequest", "there is nothing", "prompt")
        if request.prompt_token_ids == [0]:
            raise KeyError("zero")
        self.left[request.request_id] = list(request.prompt_token_ids)

    def abort(self, request_id: str, choice: int | None, finish_reason: str, reason: str) -> list[wire.TokenEvent]:
        if self.left.pop(request_id, None) is None:
            return []
        return [wire.TokenEvent(request_id, 0, finish_reason=finish_reason, stop_reason=reason or None)]

    def has_work(self) -> bool:
        # The request "endless" waits for its abort.
        return any(request_id != "endless" for request_id in self.left)

    def step(self) -> list[wire.TokenEvent]:
        events = []
        for request_id in [each for each in self.left if each != "endless"]:
            token_id = self.left[request_id].pop(0)
            if token_id < 0:
                raise RuntimeError("the engine is broken")
            is_last = not self.left[request_id]
            events.append(wire.TokenEvent(request_id, 0, [token_id], finish_reason="length" if is_last else None))
            if is_last:
                del self.left[request_id]
        return events

    def open_ids(self) -> list[str]:
        return list(self.left)


class Parent:
    """The other end."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._frames = wire.FrameReader()
        self._messages: list[Any] = []

    def send(self, *messages: wire.Down) -> None:
        self._socket.sendall(b"".join(wire.pack_frame(wire.encode(message)) for message in messages))

    def next(self) -> Any:
        """The next message that is not Stats."""
        while True:
            while not self._messages:
                data = self._socket.recv(65536)
                assert data, "the server ended"
                self._messages += [wire.decode_up(payload) for payload in self._frames.feed(data)]
            message = self._messages.pop(0)
            if not isinstance(message, wire.Stats):
                return message

    def close(self) -> None:
        self._socket.close()


class Running:
    """A server in a thread, and what it ended with."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(WAIT_S)
        self.parent = Parent(ours)
        self.error: BaseException | None = None
        self._theirs = theirs
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            TokenServer(Connection(self._theirs), Counting()).serve()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running()
    yield server
    server.parent.close()
    server.join()


def submit(request_id: str, *token_ids: int) -> wire.Submit:
    return wire.Submit(request_id=request_id, prompt_token_ids=list(token_ids))


def test_a_request_is_accepted_and_its_events_come_step_by_step(running: Running) -> None:
    running.parent.send(submit("a", 5, 6))
    assert running.parent.next() == wire.Accepted(request_id="a")
    assert running.parent.next().events == [wire.TokenEvent("a", 0, [5])]
    last = running.parent.next()
    assert last.events == [wire.TokenEvent("a", 0, [6], finish_reason="length")]
    assert (last.num_running, last.num_tokens) == (0, 1)


def test_what_the_predictor_does_not_take_is_refused(running: Running) -> None:
    running.parent.send(submit("a"))
    refused = running.parent.next()
    assert (refused.request_id, refused.error.kind, refused.error.param) == ("a", "InvalidRequest", "prompt")


def test_what_breaks_as_it_is_taken_is_refused_and_ends_no_others(running: Running) -> None:
    running.parent.send(submit("endless", 1), submit("a", 0), submit("b", 7))
    assert running.parent.next() == wire.Accepted(request_id="endless")
    refused = running.parent.next()
    assert (refused.request_id, refused.error.kind) == ("a", "InferenceFailed")
    assert refused.error.message == "the engine raised KeyError: 'zero'"
    assert running.parent.next() == wire.Accepted(request_id="b")


def test_an_abort_ends_it_at_once_and_an_unknown_one_nothing(running: Running) -> None:
    abort = wire.Abort(request_id="endless", finish_reason="stop", reason="seen")
    running.parent.send(submit("endless", 1), wire.Abort(request_id="nobody"), abort, abort)
    assert isinstance(running.parent.next(), wire.Accepted)
    assert running.parent.next().events == [
        wire.TokenEvent("endless", 0, finish_reason="stop", stop_reason="seen"),
    ]
    running.parent.send(wire.Profile(num_steps=1))
    assert running.parent.next().error.kind == "UnsupportedFeature"


def test_a_shutdown_ends_what_is_open(running: Running) -> None:
    running.parent.send(submit("endless", 1), wire.Shutdown())
    assert isinstance(running.parent.next(), wire.Accepted)
    (event,) = running.parent.next().events
    assert (event.finish_reason, event.stop_reason) == ("abort", "shutdown")
    running.join()
    assert running.error is None


def test_a_step_that_raises_and_a_parent_that_is_gone_end_it() -> None:
    for act, kind in ((lambda parent: parent.send(submit("a", -1)), RuntimeError), (Parent.close, ParentGone)):
        running = Running()
        act(running.parent)
        running.join()
        assert isinstance(running.error, kind)
        running.parent.close()
