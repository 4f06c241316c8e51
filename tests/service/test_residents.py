"""Several models, really loaded and unloaded: scripted ones in threads, the tiny one in real children."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

import headway_wire as wire
from headway.config import (
    CheckpointConfig,
    EngineConfig,
    ModelConfig,
    PoolConfig,
    ResidencyConfig,
    ServerConfig,
)
from headway.core.infer import Inferred, InferRequest
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.errors import (
    CorruptCheckpoint,
    DownloadFailed,
    HeadwayError,
    InvalidConfig,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    ShuttingDown,
)
from headway.observe.memory_use import process_tree_bytes
from headway.service.estimate import ModelEstimate
from headway.service.events import CPU, Measured
from headway.service.loader import ProcessLoader
from headway.service.local import LocalService
from headway.testing.fake_clock import FakeClock
from headway.testing.fake_gpus import FakeGpus
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService
from headway.testing.tiny_model import write_tiny_model
from headway.worker.resident import ClientSettings

WAIT_S = 60.0
MIB = 1 << 20
PINNED = ResidencyConfig(is_pinned=True)


@pytest.fixture
async def make() -> AsyncIterator[Any]:
    made: list[LocalService] = []

    async def start(service: LocalService) -> LocalService:
        made.append(service)
        await service.start()
        return service

    yield start
    for service in made:
        await service.aclose()


async def until(is_there: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if is_there():
                return
            await asyncio.sleep(0.002)


async def ask(service: LocalService, model: str, text: str = "ab") -> str:
    request = GenerateRequest("r", model, TextPrompt(text), SamplingParams(temperature=0.0))
    async with await service.generate(request) as stream:
        return "".join([delta.text async for delta in stream])


def scripts(names: str) -> Mapping[str, Script]:
    return {name: Script(reply=say(f"I am {name}")) for name in names}


def states(service: LocalService) -> dict[str, str]:
    return {card.id: card.state for card in service.models()}


def num_loads(service: LocalService) -> int:
    return sum(int(numbers["loads_total"]) for numbers in service.stats()["models"].values())


class TestLoadAndUnload:
    async def test_a_model_is_loaded_unused_and_unloaded_again(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("ab"), keeps_first=False))
        card = await service.load("b")
        assert (card.state, [phase for phase, _ in card.phases][-1]) == ("ready", "warm")
        assert card.num_bytes == 64 * MIB
        assert states(service) == {"a": "cold", "b": "ready"}
        assert (await service.unload("b")).state == "cold"
        assert (await service.unload("b")).state == "cold"
        assert await ask(service, "b") == "I am b"

    async def test_unload_waits_for_what_runs_and_who_comes_meanwhile_loads_it_again(self, make: Any) -> None:
        service = await make(ScriptedService(Script(reply=say("abc", gates={1: "go"}))))
        running = asyncio.create_task(ask(service, "scripted"))
        await until(lambda: service.stats()["models"]["scripted"].get("client_open_requests"))
        unloading = asyncio.create_task(service.unload("scripted"))
        await asyncio.sleep(0)
        late = asyncio.create_task(ask(service, "scripted"))
        await until(lambda: service.stats()["pool"]["pool"]["waiting_requests"])
        assert not unloading.done()
        service.open_gate("go")
        assert await running == "abc"
        await unloading
        await until(lambda: num_loads(service) == 2)
        service.open_gate("go")
        assert await late == "abc"

    async def test_a_caller_of_unload_that_goes_changes_nothing(self, make: Any) -> None:
        service = await make(ScriptedService(Script(reply=say("abc", gates={1: "go"}))))
        running = asyncio.create_task(ask(service, "scripted"))
        await until(lambda: service.stats()["models"]["scripted"].get("client_open_requests"))
        unloading = asyncio.create_task(service.unload("scripted"))
        await asyncio.sleep(0)
        unloading.cancel()
        service.open_gate("go")
        assert await running == "abc"
        await until(lambda: states(service)["scripted"] == "cold")

    async def test_a_load_that_is_unloaded_in_the_same_turn_ends_well(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("a"), keeps_first=False))
        loading = asyncio.create_task(service.load("a"))
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.wait({loading})
        async with asyncio.timeout(WAIT_S):
            await service.unload("a")
        assert states(service) == {"a": "cold"}
        assert await ask(service, "a") == "I am a"

    @pytest.mark.case("load-race-07")
    async def test_two_loops_that_load_ask_and_unload_the_same_model_never_see_it_missing(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("x"), keeps_first=False))

        async def loop() -> None:
            for _ in range(200):
                await service.load("x")
                assert await ask(service, "x") == "I am x"
                await service.unload("x")

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(loop(), loop())
        assert service.stats()["pool"]["pool"]["worker_failures_total"] == 0
        assert states(service) == {"x": "cold"}

    @pytest.mark.case("dup-load-05")
    async def test_twenty_first_requests_are_one_load_and_all_are_answered(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("ab"), keeps_first=False))
        assert await asyncio.gather(*(ask(service, "b") for _ in range(20))) == ["I am b"] * 20
        assert num_loads(service) == 1

    @pytest.mark.case("dup-load-05")
    async def test_twenty_that_wait_for_a_load_that_fails_get_its_error_and_the_next_one_tries_again(
        self, make: Any
    ) -> None:
        clock = FakeClock()
        broken = Script(load_error=CorruptCheckpoint("cut at byte 7").to_wire())
        service = await make(ScriptedService(models={"a": Script(), "b": broken}, keeps_first=False, clock=clock))
        errors = await asyncio.gather(*(ask(service, "b") for _ in range(20)), return_exceptions=True)
        assert {(type(error), str(error)) for error in errors} == {(CorruptCheckpoint, "cut at byte 7")}
        assert service.stats()["pool"]["pool"]["worker_starts_total"] == 1
        with pytest.raises(ModelNotReady, match="cut at byte 7"):
            await ask(service, "b")
        assert service.card("b").retry_at_s == pytest.approx(1.0)
        service.loader.scripts["b"] = Script(reply=say("mended"))
        clock.advance(1.0)
        assert await ask(service, "b") == "mended"
        # One that fails takes nothing else down.
        assert await ask(service, "a") == "Hello!"


class TestPool:
    async def test_pinned_models_are_loaded_at_the_start(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("abc"), residency={"c": PINNED}))
        assert not service.is_ready()[0]
        await until(lambda: states(service) == {"a": "ready", "b": "cold", "c": "ready"})
        assert service.is_ready() == (True, "")

    async def test_a_server_of_cold_models_is_ready_since_the_first_request_loads(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("ab"), keeps_first=False))
        assert service.is_ready() == (True, "")
        assert await ask(service, "b") == "I am b"

    async def test_bytes_decide_who_stays(self, make: Any) -> None:
        sizes = {name: ResidencyConfig(expected_bytes=size * MIB) for name, size in {"a": 60, "b": 60, "c": 60}.items()}
        pool = PoolConfig(memory_limit=150 * MIB, eviction="lru")
        service = await make(ScriptedService(models=scripts("abc"), residency=sizes, pool=pool))
        for name in "abac":
            assert await ask(service, name) == f"I am {name}"
        assert states(service) == {"a": "ready", "b": "cold", "c": "ready"}
        assert service.stats()["models"]["b"]["stops_room_total"] == 1

    async def test_one_that_is_too_large_is_refused_at_once(self, make: Any) -> None:
        sizes = {"b": ResidencyConfig(expected_bytes=200 * MIB)}
        pool = PoolConfig(memory_limit=150 * MIB)
        service = await make(ScriptedService(models=scripts("ab"), residency=sizes, pool=pool))
        words = rf"b needs 200.0 MiB \({200 * MIB} bytes\).* 150.0 MiB \({150 * MIB} bytes\)"
        with pytest.raises(OutOfMemory, match=words):
            await ask(service, "b")
        assert await ask(service, "a") == "I am a"

    async def test_a_model_may_be_pinned_and_unpinned_while_it_is_served(self, make: Any) -> None:
        service = await make(ScriptedService(models=scripts("ab"), pool=PoolConfig(max_models=1)))
        model = service.roster.find("a").model
        await service.load("a")
        service._residents.change(model, dataclasses.replace(model.config, residency=PINNED))
        with pytest.raises(ModelNotReady, match=r"b has no place: .*pinned: a\. Unpin one"):
            await ask(service, "b")
        service._residents.change(model, dataclasses.replace(model.config, residency=ResidencyConfig()))
        assert await ask(service, "b") == "I am b"

    async def test_a_removed_model_ends_with_its_last_answer(self, make: Any) -> None:
        running = {"a": Script(reply=say("abc", gates={1: "go"})), "b": Script()}
        service = await make(ScriptedService(models=running))
        model = service.roster.find("a").model
        answer = asyncio.create_task(ask(service, "a"))
        await until(lambda: service.stats()["models"]["a"].get("client_open_requests"))
        service._residents.remove(model)
        with pytest.raises(ModelNotFound):
            await service._residents.lease(model)
        assert "a" in service._residents.models
        service.open_gate("go", "a")
        assert await answer == "abc"
        await until(lambda: "a" not in service._residents.models)

    async def test_a_download_that_fails_is_a_failed_load_with_its_reason(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = await make(ScriptedService(models=scripts("ab"), keeps_first=False))

        async def fail(*_: Any) -> Path:
            raise DownloadFailed("the hub is out of reach")

        monkeypatch.setattr(service.loader, "resolve", fail)
        with pytest.raises(DownloadFailed, match="out of reach"):
            await ask(service, "b")
        assert service.card("b").state == "failed"

    async def test_closing_while_a_need_is_looked_for_ends_it(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        service = await make(ScriptedService(models=scripts("ab"), keeps_first=False))
        entered = asyncio.Event()

        async def hang(*_: Any) -> ModelEstimate:
            entered.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(service.loader, "estimate", hang)
        waiting = asyncio.create_task(ask(service, "b"))
        await entered.wait()
        assert service.card("b").state == "loading"
        await service.aclose()
        await asyncio.wait({waiting})
        assert waiting.exception() is not None

    async def test_the_end_of_the_last_lease_does_not_break_off_the_end_of_its_model(self, tmp_path: Path) -> None:
        client = LateClient()
        model = ModelConfig(source="m", framework="python", residency=ResidencyConfig(idle_timeout_s=0))
        checkpoint = CheckpointConfig(cache_dir=tmp_path)
        service = LocalService([model], PoolConfig(), ServerConfig(), checkpoint, loader=OneClient(client))
        asking = asyncio.create_task(service.infer(InferRequest(request_id="r", model="m", value=1)))
        await client.asked.wait()
        async with asyncio.timeout(WAIT_S):
            await service.aclose()
        assert client.is_gone
        with pytest.raises(ShuttingDown):
            await asking

    def test_limits_that_can_not_be_are_refused(self) -> None:
        with pytest.raises(InvalidConfig, match="memory_limit"):
            ScriptedService(pool=PoolConfig(memory_limit=1 << 60))


class TestGrowth:
    """Beyond what there may be: told once, and shown as long as it is so."""

    async def grow(self, service: LocalService, name: str, num_bytes: int) -> None:
        residents = service._residents
        model = residents.models[name]
        event = Measured(name, residents.residency(model).generation, {CPU: num_bytes})
        residents._tell_measured(model, event)

    async def test_a_lone_resident_over_the_limit_stays_and_is_told_of(
        self, make: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = await make(ScriptedService(models=scripts("ab"), pool=PoolConfig(memory_limit=100 * MIB)))
        await service.until_ready()
        await self.grow(service, "a", 150 * MIB)
        await self.grow(service, "a", 151 * MIB)
        (line,) = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
        assert "take 150.0 MiB of cpu, over --memory-limit 100.0 MiB" in line
        assert "a 150.0 MiB" in line
        assert service.card("a").over_limit_bytes == 51 * MIB
        assert service.card("b").over_limit_bytes == 0
        assert service.stats()["pool"]["pool"]["over_limit_bytes_cpu"] == 51 * MIB
        await self.grow(service, "a", 90 * MIB)
        assert service.card("a").over_limit_bytes == 0
        assert service.stats()["pool"]["pool"]["over_limit_bytes_cpu"] == 0
        await self.grow(service, "a", 150 * MIB)
        assert len([it for it in caplog.records if it.levelname == "WARNING"]) == 2

    async def test_two_that_are_too_large_together_are_told_of_while_none_can_go(
        self, make: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        pinned = {"a": PINNED, "b": PINNED}
        limit = PoolConfig(memory_limit=200 * MIB)
        service = await make(ScriptedService(models=scripts("ab"), pool=limit, residency=pinned))
        await until(lambda: service.stats()["pool"]["pool"]["residents"] == 2)
        await self.grow(service, "a", 120 * MIB)
        await self.grow(service, "b", 110 * MIB)
        (line,) = [it.getMessage() for it in caplog.records if it.levelname == "WARNING"]
        assert "230.0 MiB of cpu" in line
        assert "a 120.0 MiB, b 110.0 MiB" in line
        assert [service.card(name).over_limit_bytes for name in "ab"] == [0, 0]


class LateClient:
    """A model that answers nothing until it is closed, which takes it several turns of the loop."""

    pids = ()

    def __init__(self) -> None:
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        self.asked = asyncio.Event()
        self.is_gone = False
        self._answer: asyncio.Future[Inferred] = asyncio.get_running_loop().create_future()

    async def load(self, message: wire.Load) -> wire.Ready:
        return wire.Ready(info={"task": "python", "platform": "python"})

    async def infer(
        self, request: InferRequest, on_settled: Callable[[bool], None], *, deadline: float | None = None
    ) -> Inferred:
        self.asked.set()
        try:
            return await self._answer
        finally:
            on_settled(False)

    def stats(self) -> dict[str, float]:
        return {}

    def shut_down_requests(self) -> None:
        self._answer.set_exception(ShuttingDown("over"))

    async def close(self, grace_s: float = 2.0) -> None:
        self.shut_down_requests()
        for _ in range(5):
            await asyncio.sleep(0)
        self.is_gone = True


class OneClient(ProcessLoader):
    """Has a client already, and no files."""

    def __init__(self, client: LateClient) -> None:
        super().__init__(CheckpointConfig(cache_dir=Path()))
        self._client = client

    async def resolve(self, model: ModelConfig) -> Path:
        return Path()

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> LateClient:
        return self._client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def tiny_models(folder: Path, names: str, pool: PoolConfig) -> LocalService:
    engine = EngineConfig(threads=1, executor="native")
    models = [ModelConfig(source=str(folder), served_names=(name,), engine=engine) for name in names]
    checkpoint = CheckpointConfig(cache_dir=folder / "cache")
    return LocalService(models, pool, ServerConfig(), checkpoint, keeps_first=False)


class TestRealChildren:
    async def test_two_language_models_share_a_budget_that_the_first_cache_would_have_filled(
        self, make: Any, folder: Path
    ) -> None:
        service = await make(tiny_models(folder, "ab", PoolConfig(memory_limit=300 * MIB)))
        async with asyncio.timeout(WAIT_S):
            assert [await ask(service, name) for name in "abab"] == ["cdefghijklmnopqrstuvwxyz"] * 4
        assert num_loads(service) == 2
        infos = [service.card(name).info for name in "ab"]
        # The first has all it makes use of (75 MiB: 25% of the budget), the second what is left; both their context.
        assert infos[0]["kv_cache_bytes"] > infos[1]["kv_cache_bytes"] > infos[0]["kv_cache_bytes"] / 4
        assert [info["max_model_len"] for info in infos] == [512, 512]
        charged = service.stats()["pool"]["pool"]["charged_bytes_cpu"]
        assert charged <= 300 * MIB
        assert charged == sum(service.card(name).num_bytes or 0 for name in "ab")

    async def test_unloading_gives_the_memory_back(self, make: Any, folder: Path) -> None:
        service = await make(tiny_models(folder, "ab", PoolConfig(memory_limit=400 * MIB)))
        ours = psutil.Process()
        before = process_tree_bytes([ours.pid])
        async with asyncio.timeout(WAIT_S):
            for name in "ab":
                await ask(service, name)
            pids = service.worker_pids()
            await until(lambda: all(service.stats()["models"][name]["measured_bytes"] for name in "ab"))
            models = service.stats()["models"]
            taken = {name: process_tree_bytes([pids[name]]) for name in "ab"}
            # What was measured as they were ready is about what they take now, and no more than was reserved.
            for name in "ab":
                assert taken[name] * 0.3 < models[name]["measured_bytes"] < taken[name] * 1.2
                assert 20 * MIB < models[name]["measured_bytes"] <= models[name]["charged_bytes"]
            loaded = process_tree_bytes([ours.pid])
            assert loaded - before > sum(taken.values()) * 0.8
            for name in "ab":
                await service.unload(name)
            assert not any(psutil.pid_exists(pid) for pid in pids.values())
        assert process_tree_bytes([ours.pid]) < loaded - sum(taken.values()) * 0.8
        assert service.stats()["pool"]["pool"]["charged_bytes_cpu"] == 0

    async def test_what_gpus_say_is_charged_too(self, make: Any) -> None:
        clock = FakeClock()
        service = await make(ScriptedService(models=scripts("ab"), is_in_process=False, keeps_first=False, clock=clock))
        gpus = FakeGpus(1 << 30)
        service._residents.memory.gpus = gpus
        async with asyncio.timeout(WAIT_S):
            lease = await service._residents.lease(service.roster.find("a").model)
            gpus.used[0] = {lease.client.pids[0]: 77}
            clock.advance(5.0)
            await until(lambda: not service._residents.memory._looking)
            lease.release(True)
            await until(lambda: service._residents.pool.charged.get("cuda:0") == 77)
