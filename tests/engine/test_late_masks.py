"""Outputs whose masks are slow are left out of steps until theirs are there, and say the same as if they were not."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.tiny_rig import TinyRig, make_engine, regex_grammar, right_answer

import headway_wire as wire
from headway.engine import masks
from headway.engine.engine import Engine
from headway.testing.tiny_model import write_tiny_model

PATTERN = "[a-f]{3}(xyz|123)[0-9]{5}"
WORD = wire.Constraint(grammar=regex_grammar(PATTERN))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("late") / "tiny")


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    engine = make_engine(folder, max_num_seqs=4)
    yield engine
    engine.close()


@pytest.fixture
def rig(engine: Engine) -> TinyRig:
    return TinyRig(engine)


class Filling:
    """MaskFiller.fill whose processor time is as written here, and which waits where it may be late."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs = costs
        self.late: list[tuple[str, int]] = []
        """Made ahead: of which request, behind how many tokens."""
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False
        self.now_s = threading.local()
        self._whole = masks.MaskFiller.fill

    def fill(self, filler: Any, sequence: Any, output: Any, mask: Any) -> None:
        if threading.current_thread().name.startswith("late-masks"):
            self.late.append((sequence.request_id, sequence.num_output_tokens))
            assert self.gate.wait(30)
            if self.fails:
                raise RuntimeError("a panic of the library")
        self._whole(filler, sequence, output, mask)
        self.now_s.value = self.thread_time() + self.costs.get(sequence.request_id, 0.0)

    def thread_time(self) -> float:
        return float(getattr(self.now_s, "value", 0.0))


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Filling]:
    def install(**costs: float) -> Filling:
        filling = Filling(costs)
        monkeypatch.setattr(masks.MaskFiller, "fill", lambda *arguments: filling.fill(*arguments))
        monkeypatch.setattr(masks.time, "thread_time", filling.thread_time)
        return filling

    return install


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        threading.Event().wait(0.001)


def test_nobody_waits_for_a_slow_mask_but_its_own_output(rig: TinyRig, fill: Callable[..., Filling]) -> None:
    filling = fill(slow=0.02)
    rig.submit("slow", "hello", WORD)
    rig.submit("well", "hello", WORD)
    rig.submit("plain", "abc", None, max_tokens=40, ignore_eos=True)
    filling.gate.clear()
    rig.wait("slow", "well")
    while not filling.late:  # with a step the first slow mask is made
        rig.step()
    for _ in range(5):
        assert {event.request_id for event in rig.step().events} <= {"well", "plain"}
        assert rig.steps[-1].num_tokens
    assert filling.late == [("slow", 1)]
    filling.gate.set()
    rig.run()
    right = right_answer("hello", PATTERN)
    for name in ("slow", "well"):
        assert (rig.output(name).token_ids, rig.output(name).finish_reason) == (right.token_ids, "stop")
        assert rig.output(name).num_forced == right.num_forced
    assert [name for name, _ in filling.late] == ["slow"] * (len(right.token_ids) - right.num_forced - 1)


def test_an_engine_with_late_outputs_alone_looks_again_soon(rig: TinyRig, fill: Callable[..., Filling]) -> None:
    filling = fill(slow=0.02)
    rig.submit("slow", "hello", WORD)
    filling.gate.clear()
    rig.wait("slow")
    while not filling.late:
        rig.step()
    assert not rig.engine.has_work()
    assert rig.engine.wait_s() == pytest.approx(0.002)
    filling.gate.set()
    wait_for(rig.engine.has_work)
    rig.run()
    assert rig.output("slow").token_ids == right_answer("hello", PATTERN).token_ids


def test_an_output_that_is_fast_again_waits_for_no_mask(rig: TinyRig, fill: Callable[..., Filling]) -> None:
    filling = fill(slow=0.02)
    rig.submit("slow", "hello", WORD)
    filling.gate.clear()
    rig.wait("slow")
    while not filling.late:
        rig.step()
    filling.costs["slow"] = 0.001
    filling.gate.set()
    rig.run()
    assert len(filling.late) == 1
    assert rig.output("slow").token_ids == right_answer("hello", PATTERN).token_ids


@pytest.mark.parametrize("fails", [True, False])
def test_an_output_without_a_mask_in_time_ends_alone(rig: TinyRig, fill: Callable[..., Filling], fails: bool) -> None:
    filling = fill(slow=0.02)
    rig.submit("slow", "hello", WORD)
    rig.submit("well", "hello", WORD)
    filling.gate.clear()
    rig.wait("slow", "well")
    while not filling.late:
        rig.step()
    filling.costs["slow"], filling.fails = 0.06, fails
    filling.gate.set()
    rig.run()
    assert rig.output("well").token_ids == right_answer("hello", PATTERN).token_ids
    error = rig.told("slow")[-1].error
    assert error is not None
    assert error.kind == ("InternalError" if fails else "InvalidRequest")
    assert ("took 60 ms of processor time, and may take 50" in error.message) is not fails
    assert len(rig.output("slow").token_ids) == 1


def test_an_output_may_end_or_lose_its_place_while_it_is_late(rig: TinyRig, fill: Callable[..., Filling]) -> None:
    filling = fill(slow=0.02, moved=0.02)
    rig.submit("slow", "hello", WORD)
    rig.submit("moved", "hello", WORD)
    filling.gate.clear()
    rig.wait("slow", "moved")
    while not rig.events:
        rig.step()
    wait_for(lambda: len(rig.engine._late_masks) == 2)
    rig.engine.abort(wire.Abort(request_id="slow"))
    scheduler = rig.engine._scheduler
    moved = next(sequence for sequence in scheduler.running if sequence.request_id == "moved")
    moved.is_held = True  # others may take the place of who is held
    for number in range(4):
        rig.submit(str(number), "abc", None, max_tokens=10)
    rig.step()
    assert moved.row == -1
    moved.is_held = False
    rig.step()
    assert moved.row == -1, "it is late still"
    filling.gate.set()
    rig.run()
    assert rig.told("slow")[-1].finish_reason == "abort"
    assert rig.output("moved").token_ids == right_answer("hello", PATTERN).token_ids


def test_a_grammar_that_begins_slowly_is_late_from_its_first_token_on(
    engine: Engine, fill: Callable[..., Filling], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.engine import grammars

    monkeypatch.setattr(grammars, "seconds_to_begin", lambda matcher: 0.02)
    rig, filling = TinyRig(engine), fill(slow=0.001)
    rig.submit("slow", "hello", WORD)
    rig.run()
    assert filling.late == [("slow", 0)]
    assert rig.output("slow").token_ids == right_answer("hello", PATTERN).token_ids


def test_masks_that_take_long_together_hold_no_step_for_longer_than_their_share(
    folder: Path, fill: Callable[..., Filling]
) -> None:
    engine = make_engine(folder, max_num_seqs=8)
    names = [f"c{i}" for i in range(6)]
    rig, filling = TinyRig(engine), fill(**dict.fromkeys(names, 0.009))  # no slow ones, 54 ms together
    for name in names:
        rig.submit(name, "hello", WORD)
    filling.gate.clear()
    rig.wait(*names)
    rig.submit("plain", "abc", None, max_tokens=40, ignore_eos=True)
    while len(engine._late_masks) < 2:
        rig.step()
    late = {name for name, _ in filling.late} | {each.request_id for each in engine._outputs if each.is_late}
    assert len(late) == 2  # 4 x 9 ms are under 40, and 5 are not
    for _ in range(3):
        assert {event.request_id for event in rig.step().events} == {"plain", *names} - late
    filling.gate.set()
    rig.run()
    right = right_answer("hello", PATTERN)
    for name in names:
        assert (rig.output(name).token_ids, rig.output(name).finish_reason) == (right.token_ids, "stop")
    engine.close()
