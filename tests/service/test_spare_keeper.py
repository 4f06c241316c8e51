"""Which processes wait without a model: the choice as literals, and the moments on a fake clock."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headway_wire as wire
from headway.config import PoolConfig
from headway.service import spare_keeper
from headway.service.events import (
    CPU,
    AddModel,
    LeaseEnded,
    ModelFacts,
    Need,
    RemoveModel,
    Unload,
    Want,
    WorkerEnded,
    WorkerReady,
)
from headway.service.pool import Pool
from headway.service.spare_keeper import GUESS_BYTES, QUIET_S, START_S, SpareKeeper, SpareRoom, choose_spares
from headway.testing.fake_clock import FakeClock
from headway.testing.fake_effects import FakeEffects
from headway.worker.spares import SpareKind, Spares
from headway.worker.spawn import Spawned

MIB = 1 << 20
GIB = 1 << 30
A, B, C = (SpareKind("tensors", (name,)) for name in "abc")


class TestChoice:
    def test_the_kinds_wanted_most_each_once(self) -> None:
        room = SpareRoom(1000 * MIB, 2)
        assert choose_spares([B, A, B, C], {}, (), room) == [B, A]

    def test_what_does_not_fit_is_left_out_and_what_comes_behind_it_may_fit(self) -> None:
        room = SpareRoom(100 * MIB, 3)
        assert choose_spares([A, B, C], {A: 60 * MIB, B: 50 * MIB, C: 40 * MIB}, (), room) == [A, C]

    def test_what_was_not_measured_counts_as_the_guess(self) -> None:
        assert choose_spares([A], {}, (), SpareRoom(GUESS_BYTES - 1, 1)) == []
        assert choose_spares([A], {}, (), SpareRoom(GUESS_BYTES, 1)) == [A]

    def test_none_of_those_that_ended_by_themselves(self) -> None:
        assert choose_spares([A, B], {}, {A}, SpareRoom(GIB, 1)) == [B]

    def test_none_at_all(self) -> None:
        assert choose_spares([A, B], {}, (), SpareRoom(GIB, 0)) == []


class FakeProcess:
    """What Spares asks of a Popen."""

    def __init__(self) -> None:
        self.pid = 0
        self.stdout = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return None

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class FakeSpawned(Spawned):
    """No process: its other end is `child`."""

    def kill(self) -> None:
        self.connection.close()


class Rig:
    """A pool of models a, b, c of kinds A, B, C with a keeper; nothing real is started."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, limit: int = 10 * GIB, kinds: Any = None, **config: Any
    ) -> None:
        self.clock = FakeClock()
        self.started: list[SpareKind] = []
        self.children: dict[SpareKind, socket.socket] = {}
        self.processes: dict[SpareKind, FakeProcess] = {}
        self.spares = Spares()
        monkeypatch.setattr(self.spares, "begin", self._begin)
        monkeypatch.setattr("headway.worker.spares.process_tree_bytes", lambda pids: 50 * MIB)
        monkeypatch.setattr(spare_keeper, "take_spawned", lambda: None)
        monkeypatch.setattr(spare_keeper, "available_memory_bytes", lambda: 100 * GIB)
        facts = ModelFacts(need=Need({CPU: 100 * MIB}))
        self.pool = Pool(
            dict.fromkeys("abc", facts),
            effects=FakeEffects(),
            config=PoolConfig(),
            clock=self.clock,
            budget={CPU: limit},
        )
        kinds = kinds or {"a": A, "b": B, "c": C}
        self.keeper = SpareKeeper(self.spares, kinds.get, self.pool, PoolConfig(**config), self.clock)

    def _begin(self, kind: SpareKind) -> None:
        self.started.append(kind)
        if kind in self.children:
            self.children[kind].close()
        ours, self.children[kind] = socket.socketpair()
        self.processes[kind] = FakeProcess()
        self.spares.adopt(kind, FakeSpawned(self.processes[kind], ours))  # type: ignore[arg-type]

    async def let_wait(self, kind: SpareKind) -> None:
        """It has imported, and was measured."""
        self.children[kind].sendall(wire.pack_frame(wire.encode(wire.Waiting())))
        await until(lambda: kind in self.spares.sizes)

    def load(self, model: str, ticket: int = 1) -> int:
        """It is ready, and leased; its generation."""
        self.pool.post(Want(ticket, model))
        self.keeper.start_model()
        generation = self.pool.state.models[model].generation
        self.pool.post(WorkerReady(model, generation))
        self.keeper.look()
        return generation

    def release(self, model: str) -> None:
        self.pool.post(LeaseEnded(model, self.pool.state.models[model].generation))
        self.keeper.look()

    def idle(self) -> None:
        self.keeper.look()
        self.clock.advance(QUIET_S)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def start(**options: Any) -> Rig:
        made.append(Rig(monkeypatch, **options))
        return made[-1]

    yield start
    for rig in made:
        for child in rig.children.values():
            child.close()


async def until(is_there: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while True:
            if is_there():
                return
            await asyncio.sleep(0)


async def test_they_are_started_one_after_the_other_as_each_has_come_to_wait(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.keeper.look()
    rig.clock.advance(QUIET_S / 2)
    assert rig.started == []
    rig.clock.advance(QUIET_S / 2)
    assert rig.started == [A]
    rig.idle()
    assert rig.started == [A]  # it imports still
    await rig.let_wait(A)
    rig.clock.advance(QUIET_S)
    assert rig.started == [A, B]  # two by default
    await rig.let_wait(B)
    rig.idle()
    assert rig.started == [A, B]
    rig.keeper.close()
    assert rig.spares.kinds == ()


async def test_a_server_that_starts_is_not_idle(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.keeper.begin()
    rig.clock.advance(START_S + QUIET_S * 0.9)
    assert rig.started == []
    rig.clock.advance(QUIET_S * 0.1)
    assert rig.started == [A]
    rig.keeper.close()


async def test_none_is_started_beside_a_request_nor_just_after_it(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.load("a")
    rig.clock.advance(100.0)
    assert rig.started == []
    rig.release("a")
    rig.clock.advance(QUIET_S * 0.9)
    rig.keeper.busy()  # another request, which is over already
    rig.clock.advance(QUIET_S * 0.9)
    assert rig.started == []
    rig.clock.advance(QUIET_S * 0.1)
    assert rig.started == [B]  # a is loaded: nothing waits for it
    rig.keeper.close()


async def test_one_that_imports_is_stopped_while_a_request_runs(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.idle()
    rig.load("b")
    rig.keeper.busy()
    assert rig.processes[A].signals == [signal.SIGSTOP]
    rig.release("b")
    rig.clock.advance(QUIET_S)
    assert rig.processes[A].signals == [signal.SIGSTOP, signal.SIGCONT]
    rig.keeper.close()


async def test_one_that_is_taken_goes_on_and_is_replaced(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.idle()
    rig.keeper.busy()
    taken = rig.spares.take(A)
    assert taken is not None
    assert rig.processes[A].signals == [signal.SIGSTOP, signal.SIGCONT]
    assert rig.spares.take(A) is None
    taken.kill()
    rig.clock.advance(3 * QUIET_S)
    rig.idle()
    assert rig.started == [A, A]
    rig.keeper.close()


async def test_one_that_is_stopped_as_it_comes_to_wait_goes_on(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.idle()
    rig.children[A].sendall(wire.pack_frame(wire.encode(wire.Waiting())))  # not read yet
    rig.keeper.busy()
    await until(lambda: A in rig.spares.sizes)
    rig.keeper.busy()
    taken = rig.spares.take(A)
    assert taken is not None
    assert rig.processes[A].signals == [signal.SIGSTOP, signal.SIGCONT]
    taken.kill()
    rig.keeper.close()


async def test_the_kind_that_was_used_last_comes_first(make: Callable[..., Rig]) -> None:
    rig = make(max_spares=1)
    generation = rig.load("c")
    rig.release("c")
    rig.pool.post(Unload("c"))
    rig.pool.post(WorkerEnded("c", generation))
    rig.idle()
    assert rig.started == [C]
    rig.keeper.close()


async def test_spares_go_as_soon_as_residents_need_their_memory(make: Callable[..., Rig]) -> None:
    rig = make(max_spares=2, limit=8 * GIB)
    rig.idle()
    await rig.let_wait(A)
    rig.clock.advance(QUIET_S)
    await rig.let_wait(B)
    facts = ModelFacts(need=Need({CPU: 8 * GIB - 60 * MIB}))
    rig.pool.post(AddModel("large", facts))
    rig.pool.post(Want(9, "large"))
    rig.keeper.start_model()
    assert rig.spares.kinds == (A,)  # 50 of the 60 MiB that are left
    assert rig.spares.num_bytes(0) == 50 * MIB
    rig.keeper.close()


async def test_one_that_a_loading_model_is_about_to_take_stays(make: Callable[..., Rig]) -> None:
    rig = make(max_spares=1, limit=8 * GIB)
    rig.idle()
    await rig.let_wait(A)
    rig.pool.post(AddModel("a", ModelFacts(need=Need({CPU: 8 * GIB}))))
    rig.pool.post(Want(9, "a"))
    rig.keeper.start_model()
    assert rig.spares.kinds == (A,)
    rig.keeper.close()


async def test_one_whose_models_are_gone_goes(make: Callable[..., Rig]) -> None:
    rig = make(max_spares=1)
    rig.idle()
    await rig.let_wait(A)
    rig.pool.post(RemoveModel("a"))
    rig.idle()
    assert rig.started == [A, B]
    assert rig.spares.kinds == (B,)
    rig.keeper.close()


async def test_one_that_ends_by_itself_is_not_started_again(make: Callable[..., Rig]) -> None:
    rig = make(max_spares=1)
    rig.idle()
    rig.children[A].close()
    await until(lambda: A in rig.spares.failed)
    rig.idle()
    rig.idle()
    assert rig.started == [A, B]
    rig.keeper.close()


@pytest.mark.parametrize(
    ("limit", "config", "num_started"),
    [(3 * GIB, {}, 0), (3 * GIB, {"max_spares": 1}, 1), (4 * GIB, {}, 1), (4 * GIB, {"max_spares": 0}, 0)],
)
async def test_there_are_none_where_memory_is_small_unless_they_are_asked_for(
    make: Callable[..., Rig], limit: int, config: dict[str, int], num_started: int
) -> None:
    rig = make(limit=limit, **config)
    rig.idle()
    assert len(rig.started) == num_started
    rig.keeper.close()


async def test_none_is_started_where_other_programs_need_the_memory(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make()
    monkeypatch.setattr(spare_keeper, "available_memory_bytes", lambda: 100 * MIB)
    rig.idle()
    assert rig.started == []
    rig.keeper.close()


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without msgspec."""
    env = tmp_path_factory.mktemp("bare") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    return str(env / "bin" / "python")


async def test_once_they_wait_the_server_imports_what_a_first_load_needs_of_it(
    make: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported: list[list[str]] = []
    monkeypatch.setattr(spare_keeper, "IMPORTED_HERE", ("first", "second"))
    monkeypatch.setattr(spare_keeper, "import_ahead", imported.append)
    engine = SpareKind("tokens", ("e",))
    rig = make(max_spares=2, kinds={"a": A, "b": engine})
    rig.idle()
    await rig.let_wait(A)
    rig.clock.advance(QUIET_S)
    await rig.let_wait(engine)
    assert imported == []
    rig.clock.advance(QUIET_S)
    await until(lambda: len(imported) == 2)
    assert imported == [["first"], ["second"]]
    rig.keeper.close()


class TestRealChildren:
    @pytest.mark.parametrize("serves", ["tokens", "tensors"])
    @pytest.mark.parametrize("module", ["json", "json.there_is_none"])
    async def test_it_imports_waits_and_is_measured(self, serves: Any, module: str) -> None:
        spares, changed = Spares(), asyncio.Event()
        spares.on_change = changed.set
        kind = SpareKind(serves, (module,))
        spares.begin(kind)
        spares.begin(kind)
        async with asyncio.timeout(30.0):
            await changed.wait()
        assert spares.num_waiting == 1
        assert MIB < spares.sizes[kind] < 200 * MIB
        taken = spares.take(kind)
        assert taken is not None
        taken.connection.setblocking(True)
        taken.connection.sendall(wire.pack_frame(wire.encode(wire.Shutdown())))
        assert await asyncio.to_thread(taken.process.wait, 30.0) == 0
        taken.kill()

    async def test_what_is_not_installed_has_none(self) -> None:
        spares, changed = Spares(), asyncio.Event()
        spares.on_change = changed.set
        kind = SpareKind("tensors", ("json", "there_is_none.of_it"))
        spares.begin(kind)
        assert (spares.kinds, spares.failed) == ((), {kind})
        assert changed.is_set()  # another kind may have its place

    async def test_an_interpreter_that_can_not_serve_is_not_tried_again(self, bare_python: str) -> None:
        spares, changed = Spares(), asyncio.Event()
        spares.on_change = changed.set
        kind = SpareKind("tensors", ("json",), bare_python)
        spares.begin(kind)
        async with asyncio.timeout(30.0):
            await changed.wait()
        assert kind in spares.failed
        assert spares.kinds == ()
        spares.begin(kind)
        assert spares.kinds == ()
