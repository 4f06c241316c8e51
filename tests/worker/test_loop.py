"""The worker's loop, run to its end in the test's own thread over a scripted predictor."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

import headway_wire as wire
from headway.errors import CorruptCheckpoint
from headway.testing.script import Reply, Script, say
from headway.testing.scripted_service import PREDICTOR
from headway.worker import loop
from headway.worker.loop import Inbox, WorkerLoop

HI = list(b"hi")


def load(predictor: str = PREDICTOR, **script: Any) -> wire.Load:
    plain = msgspec.to_builtins(Script(**script), builtin_types=(bytes,))
    return wire.Load(predictor=predictor, source="x", options={"script": plain})


def run(*messages: wire.Down, times: list[float] | None = None) -> tuple[int, list[wire.Up]]:
    """The exit code and all that was said. The messages lie in the inbox before the loop starts."""
    inbox, said = Inbox(), list[wire.Up]()
    for message in messages:
        inbox.put(message)

    def send(message: wire.Up) -> None:
        said.append(message)
        if isinstance(message, wire.Stats) and message.values["num_running"] == 0 and len(said) > 5:
            inbox.put(wire.Shutdown())

    clock = iter(times or [])
    return WorkerLoop(inbox, send, now=lambda: next(clock, 0.0)).run(), said


def kinds(said: list[wire.Up]) -> list[str]:
    return [type(message).__name__ for message in said]


def test_a_life_from_load_to_shutdown() -> None:
    code, said = run(load(reply=say("yo")), wire.Submit(request_id="r", prompt_token_ids=HI))
    assert code == 0
    assert kinds(said) == [
        "Loading",
        "Loading",
        "Loading",
        "Ready",
        "Stats",
        "Accepted",
        "Step",
        "Step",
        "Step",
        "Stats",
    ]
    events = [event for step in said if isinstance(step, wire.Step) for event in step.events]
    assert [(event.token_ids, event.finish_reason) for event in events] == [
        ([ord("y")], None),
        ([ord("o")], None),
        ([256], "stop"),
    ]


@pytest.mark.parametrize(
    ("first", "kind", "words"),
    [
        (load(load_error=CorruptCheckpoint("cut at 7").to_wire()), "CorruptCheckpoint", "cut at 7"),
        (load(load_raises="boom"), "InternalError", "RuntimeError: boom"),
        (load("no.such.module:Thing"), "InvalidConfig", "no.such.module:Thing"),
        (load("headway.testing.script:NoSuchClass"), "InvalidConfig", "NoSuchClass"),
        (load("headway.testing.script"), "InvalidConfig", "module:Class"),
        (load(""), "InvalidConfig", "module:Class"),
        (wire.Submit(request_id="r", prompt_token_ids=HI), "InvariantBroken", "Submit, it must be Load"),
        (wire.Shutdown(), "InvariantBroken", "before there was anything to load"),
    ],
)
def test_a_load_that_fails_is_told_and_ends_with_code_1(first: wire.Down, kind: str, words: str) -> None:
    code, said = run(first)
    assert code == 1
    assert isinstance(said[-1], wire.Failed)
    assert said[-1].error.kind == kind
    assert words in said[-1].error.message
    assert "Ready" not in kinds(said)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([load(reply=Reply(raise_at=0)), wire.Submit(request_id="r", prompt_token_ids=HI)], "scripted to raise at 0"),
        ([load(), load()], "a second Load"),
    ],
)
def test_what_escapes_the_predictor_ends_the_worker(messages: list[wire.Down], words: str) -> None:
    code, said = run(*messages)
    assert code == 1
    assert isinstance(said[-1], wire.Failed)
    assert words in said[-1].error.message


def test_a_shutdown_ends_what_is_open_with_abort_events() -> None:
    endless = say("x", is_endless=True)
    submits = [
        wire.Submit(request_id="r", prompt_token_ids=HI, sampling=wire.Sampling(n=2)),
        wire.Submit(request_id="s", prompt_token_ids=HI),
    ]
    code, said = run(load(reply=endless), *submits, wire.Shutdown())
    assert code == 0
    ends = [
        (event.request_id, event.choice, event.finish_reason)
        for step in said
        if isinstance(step, wire.Step)
        for event in step.events
        if event.finish_reason
    ]
    assert sorted(ends) == [("r", 0, "abort"), ("r", 1, "abort"), ("s", 0, "abort")]


def test_a_request_that_cannot_end_does_not_keep_a_shutdown() -> None:
    gated = say("x", gates={0: "never"})
    code, said = run(load(reply=gated), wire.Submit(request_id="r", prompt_token_ids=HI), wire.Shutdown())
    assert code == 0
    assert kinds(said)[-1] == "Step"


def test_stats_come_at_most_once_a_second_while_there_is_work() -> None:
    # now() is asked at the start, and once after each step; with Stats once more.
    times = [0.0, 0.0, *[tenth / 10 for tenth in range(1, 40)]]
    _, said = run(load(reply=say("x" * 30)), wire.Submit(request_id="r", prompt_token_ids=HI), times=times)
    num_steps = kinds(said).count("Step")
    num_stats = kinds(said).count("Stats")
    assert num_steps == 31
    assert 2 < num_stats <= 2 + 4


def test_an_infer_is_answered_even_by_a_model_that_takes_no_tensors() -> None:
    _, said = run(load(), wire.Infer(request_id="i", tensors=[]), wire.Shutdown())
    outputs = [message for message in said if isinstance(message, wire.Outputs)]
    assert [(message.request_id, message.error.kind) for message in outputs if message.error] == [
        ("i", "InvalidRequest")
    ]


class Clocked:
    """A predictor that has one step to do once it was asked how long to wait."""

    waits: ClassVar[list[float | None]] = []

    def __init__(self) -> None:
        self.is_due = False
        self.num_left = 1

    def load(self, source: str, options: dict[str, Any], report: Any) -> wire.Ready:
        return wire.Ready()

    def handle(self, message: Any) -> list[wire.Up]:
        return []

    def has_work(self) -> bool:
        return self.is_due and self.num_left > 0

    def wait_s(self) -> float | None:
        wait_s = None if self.is_due else 0.0
        self.is_due = True
        self.waits.append(wait_s)
        return wait_s

    def step(self) -> list[wire.Up]:
        self.num_left -= 1
        return [wire.Step(num_tokens=3)]

    def stats(self) -> wire.Stats:
        return wire.Stats(values={"num_running": 0.0})

    def close(self) -> None:
        pass


def test_a_predictor_that_waits_for_the_clock_goes_on_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    Clocked.waits.clear()
    inbox, said = Inbox(), list[wire.Up]()

    def send(message: wire.Up) -> None:
        said.append(message)
        if isinstance(message, wire.Stats) and "Step" in kinds(said):
            inbox.put(wire.Shutdown())

    monkeypatch.setattr(loop, "find_predictor", lambda name: Clocked())
    inbox.put(wire.Load(predictor="a:Clocked", source="x"))
    assert WorkerLoop(inbox, send).run() == 0
    assert kinds(said) == ["Ready", "Stats", "Step", "Stats"]
    assert Clocked.waits == [0.0, None]


def test_what_a_step_and_its_end_tell_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox, writes = Inbox(), list[list[str]]()

    def send_all(messages: Sequence[wire.Up]) -> None:
        writes.append(kinds(list(messages)))
        inbox.put(wire.Shutdown())

    monkeypatch.setattr(loop, "find_predictor", lambda name: Clocked())
    inbox.put(wire.Load(predictor="a:Clocked", source="x"))
    assert WorkerLoop(inbox, lambda message: None, send_all=send_all).run() == 0
    assert writes == [["Step", "Stats"]]


class Prepared(Clocked):
    """A predictor that can be told to prepare."""

    told: ClassVar[list[str]] = []

    def prepare(self) -> None:
        self.told.append("prepare")

    def load(self, source: str, options: dict[str, Any], report: Any) -> wire.Ready:
        self.told.append("load")
        return wire.Ready()


@pytest.mark.parametrize(("serves_many", "told"), [(True, ["prepare", "load"]), (False, ["load"])])
def test_what_requests_may_need_is_prepared_where_many_are_served(
    serves_many: bool, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Prepared.told.clear()
    inbox = Inbox()
    monkeypatch.setattr(loop, "find_predictor", lambda name: Prepared())
    inbox.put(wire.Load(predictor="a:Prepared", source="x"))
    inbox.put(wire.Shutdown())
    assert WorkerLoop(inbox, lambda message: None, serves_many=serves_many).run() == 0
    assert Prepared.told == told
