"""The loop of a process that takes tensors, in a thread: what it reads, computes and answers over a real socket."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import headway_wire as wire
from headway_wire.connection import Connection
from headway_wire.serve import EXIT_BAD_PARENT, run

WAIT_S = 20.0


class Recorder(wire.InferPredictor):
    """Does what the test says, and keeps which requests came together."""

    act: Callable[[Sequence[wire.Infer]], Sequence[wire.Outputs]]
    batches: list[list[str]]
    signature = wire.Signature(task="tensor", platform="test", can_batch=True)
    is_closed = False

    def load(self, source: str, options: dict[str, Any], report: Callable[[wire.Loading], None]) -> wire.Signature:
        report(wire.Loading(phase="read"))
        if "fail" in options:
            raise options["fail"] if isinstance(options["fail"], Exception) else RuntimeError(options["fail"])
        return self.signature

    def infer(self, requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
        type(self).batches.append([request.request_id for request in requests])
        return type(self).act(requests)

    def close(self) -> None:
        type(self).is_closed = True


def echo(requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
    return [wire.Outputs(request_id=request.request_id, value=request.value) for request in requests]


class Parent:
    """The other end: sends, and reads in order; Stats are kept apart."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair()
        self.socket.settimeout(WAIT_S)
        self.stats: list[dict[str, float]] = []
        self._frames = wire.FrameReader()
        self._came: list[wire.Up] = []
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        with self._theirs:
            self.code = run(Connection(self._theirs))

    def send(self, *messages: wire.Down) -> None:
        self.socket.sendall(b"".join(wire.pack_frame(wire.encode(message)) for message in messages))

    def receive(self) -> wire.Up:
        while True:
            while not self._came:
                data = self.socket.recv(1 << 16)
                assert data, "the child ended"
                self._came += [wire.decode_up(payload) for payload in self._frames.feed(data)]
            message = self._came.pop(0)
            if not isinstance(message, wire.Stats):
                return message
            self.stats.append(message.values)

    def receive_stats(self) -> dict[str, float]:
        """The next ones."""
        while not self.stats:
            self._came += [wire.decode_up(payload) for payload in self._frames.feed(self.socket.recv(1 << 16))]
            self.stats += [it.values for it in self._came if isinstance(it, wire.Stats)]
            self._came = [it for it in self._came if not isinstance(it, wire.Stats)]
        return self.stats.pop(0)

    def load(self, **fields: Any) -> None:
        name = f"{Recorder.__module__}:Recorder"
        self.send(wire.Load(predictor=name, source="x", **fields))
        assert self.receive() == wire.Loading(phase="read")

    def end(self) -> int | None:
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return self.code


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    import sys

    monkeypatch.setitem(sys.modules, Recorder.__module__, sys.modules[__name__])
    Recorder.act, Recorder.batches, Recorder.is_closed = staticmethod(echo), [], False  # type: ignore[assignment]
    parent = Parent()
    yield parent
    parent.socket.close()
    parent.thread.join(WAIT_S)
    assert not parent.thread.is_alive()


def infer(request_id: str, **fields: Any) -> wire.Infer:
    return wire.Infer(request_id=request_id, **fields)


def test_it_loads_answers_in_order_and_ends_when_asked(parent: Parent) -> None:
    parent.load()
    ready = parent.receive()
    assert ready == wire.Ready(info={"task": "tensor", "platform": "test", "can_batch": True})
    parent.send(infer("a", value=1), infer("b", value=[b"x"]))
    assert [parent.receive(), parent.receive()] == [
        wire.Outputs(request_id="a", value=1),
        wire.Outputs(request_id="b", value=[b"x"]),
    ]
    parent.send(wire.Shutdown())
    assert parent.end() == 0
    assert Recorder.is_closed
    assert Recorder.batches == [["a"], ["b"]]


def test_what_came_while_it_computed_is_one_batch_without_those_that_were_aborted(parent: Parent) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def act(requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
        begun.set()
        assert go_on.wait(WAIT_S)
        return echo(requests)

    Recorder.act = staticmethod(act)  # type: ignore[assignment]
    parent.load(max_batch_size=8)
    parent.receive()
    parent.send(infer("first"))
    assert begun.wait(WAIT_S)
    abort = wire.Abort(request_id="b", reason="its caller left")
    parent.send(infer("a"), infer("b"), infer("c"), abort, wire.Abort(request_id="first"), wire.Abort(request_id="z"))
    go_on.set()
    answers = {it.request_id: it for it in (parent.receive() for _ in range(4)) if isinstance(it, wire.Outputs)}
    assert Recorder.batches == [["first"], ["a", "c"]]
    assert answers["first"].error is None, "what is computed already is answered"
    error = answers["b"].error
    assert error is not None
    assert "its caller left" in error.message
    assert answers["a"].error is None


def test_requests_join_a_batch_for_its_delay(parent: Parent) -> None:
    parent.load(max_batch_size=2, batch_delay_s=1000.0)
    parent.receive()
    parent.send(infer("a"))
    parent.send(infer("b"))
    assert {parent.receive().request_id, parent.receive().request_id} == {"a", "b"}  # type: ignore[union-attr]
    assert Recorder.batches == [["a", "b"]]


def test_a_batch_that_fails_is_computed_again_one_by_one(parent: Parent) -> None:
    def act(requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
        if any(request.value == "bad" for request in requests):
            raise RuntimeError("shape [3] does not\nfit")
        return echo(requests)

    Recorder.act = staticmethod(act)  # type: ignore[assignment]
    parent.load(max_batch_size=3, batch_delay_s=1000.0)
    parent.receive()
    parent.send(infer("a", value=1), infer("b", value="bad"), infer("c", value=3))
    a, b, c = (parent.receive() for _ in range(3))
    error = wire.Error(kind="InferenceFailed", message="the model raised RuntimeError: shape [3] does not fit")
    assert (a, c) == (wire.Outputs(request_id="a", value=1), wire.Outputs(request_id="c", value=3))
    assert b == wire.Outputs(request_id="b", error=error)
    assert Recorder.batches == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    stats = parent.receive_stats()
    seconds = {
        stats.pop(f"infer_{name}") for name in ("compute_seconds_total", "queue_seconds_total", "max_batch_seconds")
    }
    assert all(0 <= value < WAIT_S for value in seconds)
    assert stats == {
        "infer_requests_total": 3.0,
        "infer_failures_total": 1.0,
        "infer_batches_total": 1.0,
        "infer_batch_size_bucket_2_total": 1.0,
        "infer_batch_size_sum_total": 3.0,
    }


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (wire.PredictorError("InvalidRequest", "no such city", "input_data"), "InvalidRequest", "no such city"),
        (SystemExit(3), "InferenceFailed", "the model raised SystemExit: 3"),
        (KeyboardInterrupt(), "InferenceFailed", "the model raised KeyboardInterrupt"),
        (ValueError("x" * 5000), "InferenceFailed", "the model raised ValueError: " + "x" * 988),
    ],
)
def test_whatever_a_model_raises_is_its_answer_and_the_process_lives(
    parent: Parent, raised: BaseException, kind: str, words: str
) -> None:
    def act(requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
        if requests[0].value == "good":
            return echo(requests)
        raise raised

    Recorder.act = staticmethod(act)  # type: ignore[assignment]
    parent.load()
    parent.receive()
    parent.send(infer("a"), infer("b", value="good"))
    failed = parent.receive()
    assert isinstance(failed, wire.Outputs)
    assert failed.error is not None
    assert (failed.error.kind, failed.error.message) == (kind, words)
    assert parent.receive() == wire.Outputs(request_id="b", value="good")


@pytest.mark.parametrize("answers", [[], ["a", "a"], ["b"]], ids=["none", "two", "another's"])
def test_answers_that_are_not_the_batch_s_are_an_error(parent: Parent, answers: list[str]) -> None:
    Recorder.act = staticmethod(lambda requests: [wire.Outputs(request_id=it) for it in answers])  # type: ignore[assignment]
    parent.load()
    parent.receive()
    parent.send(infer("a"))
    failed = parent.receive()
    assert isinstance(failed, wire.Outputs)
    assert failed.error is not None
    assert failed.error.kind == "InferenceFailed"
    assert f"{len(answers)} answers to 1 requests" in failed.error.message


@pytest.mark.parametrize("value", [object(), 1 << 80, [["x"] * 3, {1, 2, 3j}]])
def test_what_can_not_be_sent_is_an_error_of_that_request_alone(parent: Parent, value: Any) -> None:
    values = {"a": value, "b": "fine"}
    Recorder.act = staticmethod(  # type: ignore[assignment]
        lambda requests: [wire.Outputs(request_id=it.request_id, value=values[it.request_id]) for it in requests]
    )
    parent.load(max_batch_size=2, batch_delay_s=1000.0)
    parent.receive()
    parent.send(infer("a"), infer("b"))
    failed = parent.receive()
    assert isinstance(failed, wire.Outputs)
    assert failed.error is not None
    assert "can not be sent" in failed.error.message
    assert parent.receive() == wire.Outputs(request_id="b", value="fine")


def test_a_model_out_of_memory_ends_its_process(parent: Parent) -> None:
    def act(requests: Sequence[wire.Infer]) -> Sequence[wire.Outputs]:
        raise MemoryError("4 GB")

    Recorder.act = staticmethod(act)  # type: ignore[assignment]
    parent.load()
    parent.receive()
    parent.send(infer("a"))
    failed = parent.receive()
    assert isinstance(failed, wire.Failed)
    assert (failed.error.kind, "4 GB" in failed.error.message) == ("OutOfMemory", True)
    assert parent.end() == 1
    assert Recorder.is_closed


@pytest.mark.parametrize(
    ("load", "kind", "words"),
    [
        ({"options": {"fail": "no such file"}}, "ModelError", "RuntimeError: no such file"),
        ({"predictor": "headway_nowhere:X"}, "UnsupportedModel", "No module named 'headway_nowhere'"),
        ({"predictor": "json:Nothing"}, "UnsupportedModel", "has no attribute 'Nothing'"),
        ({"predictor": "json:JSONDecoder"}, "UnsupportedModel", "has no infer()"),
        ({"predictor": "json"}, "UnsupportedModel", "'json' can not be made"),
    ],
)
def test_a_load_that_fails_is_told_with_its_words(parent: Parent, load: dict[str, Any], kind: str, words: str) -> None:
    parent.send(wire.Load(**{"predictor": f"{Recorder.__module__}:Recorder", "source": "x", **load}))
    told = parent.receive()
    while isinstance(told, wire.Loading):
        told = parent.receive()
    assert isinstance(told, wire.Failed)
    assert told.error.kind == kind
    assert words in told.error.message
    assert parent.end() == 1


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1", b""])
def test_what_is_no_message_ends_it_and_so_does_the_end_of_file(parent: Parent, data: bytes) -> None:
    parent.load()
    parent.receive()
    parent.socket.sendall(data)
    parent.socket.shutdown(socket.SHUT_WR)
    assert parent.end() == (EXIT_BAD_PARENT if data else 0)


def test_a_large_tensor_goes_through_whole(parent: Parent) -> None:
    data = bytes(range(256)) * 40_000
    tensor = wire.Tensor(name="x", datatype="UINT8", shape=[len(data)], data=data)
    Recorder.act = staticmethod(  # type: ignore[assignment]
        lambda requests: [wire.Outputs(request_id=it.request_id, tensors=it.tensors) for it in requests]
    )
    parent.load()
    parent.receive()
    parent.send(infer("a", tensors=[tensor]))
    assert parent.receive() == wire.Outputs(request_id="a", tensors=[tensor])
