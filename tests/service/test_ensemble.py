"""A chain of models is one model: what passes between its steps, what it refuses, and how it ends."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway_wire as wire
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import Inferred, InferRequest
from headway.core.request import TextPrompt
from headway.errors import InternalError, InvalidConfig, InvalidRequest, QueueFull, ShuttingDown, UnsupportedFeature
from headway.service.ensemble import EnsembleClient, run_ensemble
from headway.service.ensemble_file import read_ensemble
from headway.service.local import LocalService
from headway.testing.fake_clock import FakeClock
from headway.worker.resident import ClientSettings
from headway.worker.stream import StreamLimits
from headway_wire.tensors import from_array, to_array

VALUES = "steps: [{model: strip}, {model: count, parameters: {by: 2}}]"
TENSORS = """
inputs: [{name: a, datatype: FP32, shape: [-1]}, {name: b, datatype: FP32, shape: [-1]}]
outputs: [{name: result, datatype: FP32, shape: [-1]}, {name: doubled, datatype: FP32, shape: [-1]}]
steps:
  - {model: add, inputs: {x: twice, y: b}, outputs: {sum: result}}
  - {model: double, inputs: {x: a}, outputs: {y: twice}}
  - {model: double, inputs: {x: b}, outputs: {y: doubled}}
"""


@dataclass
class Models:
    """Service.infer over functions."""

    asked: list[InferRequest] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def infer(self, request: InferRequest) -> Inferred:
        self.asked.append(request)
        async with self.changed:
            self.changed.notify_all()
        if request.model in self.gates:
            try:
                await self.gates[request.model].wait()
            except asyncio.CancelledError:
                self.cancelled.append(request.model)
                raise
        if request.model in self.errors:
            raise self.errors[request.model]
        return getattr(self, f"_{request.model}")(request)

    async def until_asked(self, num_times: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.asked) >= num_times)

    def _strip(self, request: InferRequest) -> Inferred:
        return Inferred(model="strip", version="", value=request.value.strip())

    def _count(self, request: InferRequest) -> Inferred:
        return Inferred(model="count", version="", value=len(request.value) * request.parameters["by"], labels=["n"])

    def _double(self, request: InferRequest) -> Inferred:
        (x,) = request.tensors
        assert x.name == "x"
        return Inferred(model="double", version="", tensors=[from_array("y", to_array(x) * np.float32(2))])

    def _add(self, request: InferRequest) -> Inferred:
        found = {tensor.name: to_array(tensor) for tensor in request.tensors}
        return Inferred(model="add", version="", tensors=[from_array("sum", found["x"] + found["y"])])

    def _silent(self, request: InferRequest) -> Inferred:
        return Inferred(model="silent", version="")


def write(folder: Path, text: str) -> Path:
    path = folder / "chain.yaml"
    path.write_text(text)
    return path


def asks(**fields: Any) -> InferRequest:
    return InferRequest(request_id="r", model="chain", **fields)


def tensor(name: str, *values: float) -> wire.Tensor:
    return from_array(name, np.array(values, dtype=np.float32))


async def run(folder: Path, text: str, request: InferRequest, models: Models | None = None) -> Inferred:
    return await run_ensemble(read_ensemble(write(folder, text)), request, (models or Models()).infer, FakeClock())


async def test_a_value_goes_from_step_to_step_with_the_parameters_of_both(tmp_path: Path) -> None:
    models = Models()
    made = await run(tmp_path, VALUES, asks(value="  four ", parameters={"k": 1}), models)
    assert (made.model, made.value, made.labels) == ("chain", 8, ["n"])
    assert [dict(each.parameters) for each in models.asked] == [{"k": 1}, {"by": 2, "k": 1}]


async def test_tensors_go_by_their_names_whatever_the_order_of_the_steps(tmp_path: Path) -> None:
    made = await run(tmp_path, TENSORS, asks(tensors=[tensor("a", 1, 2), tensor("b", 10, 20)]))
    assert {each.name: to_array(each).tolist() for each in made.tensors} == {"result": [12, 24], "doubled": [20, 40]}


async def test_of_several_outputs_those_that_are_wanted_come(tmp_path: Path) -> None:
    wanted = asks(tensors=[tensor("a", 1), tensor("b", 3)], outputs=["doubled"])
    assert [each.name for each in (await run(tmp_path, TENSORS, wanted)).tensors] == ["doubled"]


async def test_steps_that_do_not_need_each_other_run_side_by_side(tmp_path: Path) -> None:
    models = Models(gates={"double": asyncio.Event()})
    running = asyncio.create_task(run(tmp_path, TENSORS, asks(tensors=[tensor("a", 1), tensor("b", 3)]), models))
    await models.until_asked(2)
    assert [each.model for each in models.asked] == ["double", "double"]
    models.gates["double"].set()
    assert len((await running).tensors) == 2


async def test_a_step_that_fails_ends_the_others_and_is_named(tmp_path: Path) -> None:
    text = TENSORS.replace("- {model: double, inputs: {x: b}", "- {model: slow, inputs: {x: b}")
    models = Models(gates={"slow": asyncio.Event()}, errors={"double": QueueFull("many wait", retry_after_s=3)})
    with pytest.raises(QueueFull, match="step double: many wait") as raised:
        await run(tmp_path, text, asks(tensors=[tensor("a", 1), tensor("b", 3)]), models)
    assert raised.value.retry_after_s == 3
    assert models.cancelled == ["slow"]


async def test_a_step_that_gives_another_output_than_it_should_is_a_fault_with_both_names(tmp_path: Path) -> None:
    text = TENSORS.replace("- {model: add,", "- {model: silent,")
    with pytest.raises(InternalError, match="silent gave no output 'sum'; it gave: none"):
        await run(tmp_path, text, asks(tensors=[tensor("a", 1), tensor("b", 3)]))


async def test_time_is_for_all_steps_together(tmp_path: Path) -> None:
    clock, models = FakeClock(), Models()

    async def slow(request: InferRequest) -> Inferred:
        clock.advance(2.0)
        return await models.infer(request)

    ensemble = read_ensemble(write(tmp_path, VALUES))
    await run_ensemble(ensemble, asks(value="a", timeout_s=5.0), slow, clock)
    assert [each.timeout_s for each in models.asked] == [5.0, 3.0]


async def test_an_ensemble_that_holds_itself_ends_with_words(tmp_path: Path) -> None:
    ensemble = read_ensemble(write(tmp_path, "steps: [{model: chain}]"))

    async def infer(request: InferRequest) -> Inferred:
        return await run_ensemble(ensemble, request, infer, FakeClock())

    with pytest.raises(InvalidRequest, match="more than 4 deep"):
        await infer(asks(value=1))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tensors": [tensor("a", 1)]}, "input 'b' is missing; chain takes a, b"),
        ({"tensors": [tensor("a", 1), tensor("b", 1), tensor("c", 1)]}, "'c' is no input"),
        ({"tensors": [tensor("a", 1), tensor("b", 1), tensor("a", 1)]}, "'a' is no input, or comes twice"),
        (
            {"tensors": [tensor("a", 1), tensor("b", 1)], "outputs": ["x"]},
            "'x' is no output; chain gives result, doubled",
        ),
    ],
)
async def test_wrong_names_are_refused_with_those_there_are(fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    models = Models()
    with pytest.raises(InvalidRequest, match=words):
        await run(tmp_path, TENSORS, asks(**fields), models)
    assert models.asked == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expected `object`"),
        ("steps: []", "length >= 1"),
        ("steps: [{model: a, parameters: {b: &b [1, 1], c: [*b, *b]}}]", "an alias .* is not taken here: write it out"),
        ("steps: [{model: a, parameters: {b: &b {c: 1}, d: {<<: [*b, *b]}}}]", "an alias .* is not taken here"),
        ("steps: &s [*s]", "an alias .* is not taken here"),
        ("steps: [{modle: a}]", "unknown field `modle`"),
        ("steps: [{model: ''}]", "length >= 1"),
        ("steps: [{model: a", "no ensemble"),
        ("steps: !!python/object/apply:os.system [ls]", "no ensemble"),
        ("steps: [{model: a, inputs: {x: y}}]", "leave inputs and outputs out"),
        (TENSORS.replace("x: twice", "x: thrice"), "reads 'thrice', which nothing makes; there is: a, b, doubled"),
        (TENSORS.replace("y: twice", "y: a"), "'a' is made twice"),
        (TENSORS.replace("{name: result", "{name: nothing"), "outputs name 'nothing'"),
        (TENSORS.replace("inputs: {x: a}", "inputs: {x: result}"), "wait for each other: add, double"),
        (TENSORS.replace("inputs: {x: a}, ", ""), "step double needs inputs and outputs"),
    ],
)
def test_a_file_that_can_not_work_is_refused_as_it_is_read(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=words) as raised:
        read_ensemble(write(tmp_path, text))
    assert "chain.yaml" in raised.value.message


async def test_among_the_residents_it_tells_its_signature_and_ends_with_what_runs(tmp_path: Path) -> None:
    settings = ClientSettings(
        limits=StreamLimits(1, 1.0),
        stall_timeout_s=1.0,
        clock=FakeClock(),
        max_queued=None,
        on_lost=lambda: None,
        on_loading=lambda _: None,
    )
    client = EnsembleClient("chain", ModelConfig(source="x", framework="ensemble"), settings)
    ready = await client.load(wire.Load(predictor="", source=str(write(tmp_path, TENSORS))))
    assert ready.info["platform"] == "ensemble"
    assert ready.info["inputs"][1] == {"name": "b", "datatype": "FP32", "shape": [-1]}
    models = Models(gates={"double": asyncio.Event()})
    running = asyncio.create_task(client.run(asks(tensors=[tensor("a", 1), tensor("b", 3)]), models.infer))
    await models.until_asked(2)
    assert client.stats()["client_open_requests"] == 1
    await client.close()
    with pytest.raises(ShuttingDown):
        await running
    assert client.stats() == {"client_open_requests": 0, "infer_requests_total": 1}
    assert client.pids == ()


async def test_it_is_a_file_that_is_served_even_where_one_model_has_room_at_a_time(tmp_path: Path) -> None:
    for name, does in (("plus", "value + 1"), ("times", "value * 2")):
        (tmp_path / f"{name}.py").write_text(f"class Model:\n    def predict(self, value):\n        return {does}\n")
    write(tmp_path, "steps: [{model: plus}, {model: times}, {model: plus}]")
    files = {"chain": ("ensemble", "chain.yaml"), "plus": ("python", "plus.py"), "times": ("python", "times.py")}
    models = [
        ModelConfig(source=str(tmp_path / file), framework=framework, served_names=(name,))
        for name, (framework, file) in files.items()
    ]
    checkpoint = CheckpointConfig(cache_dir=tmp_path / "cache")
    service = LocalService(models, PoolConfig(max_models=1), ServerConfig(), checkpoint, keeps_first=False)
    async with asyncio.timeout(60.0):
        requests = [InferRequest(request_id=str(it), model="chain", value=it) for it in range(3)]
        answers = await asyncio.gather(*(service.infer(request) for request in requests))
        assert [answer.value for answer in answers] == [3, 5, 7]
        with pytest.raises(UnsupportedFeature, match="it has no tokens; ask it by /predict"):
            await service.tokenize("chain", TextPrompt("a"))
        assert service.stats()["pool"]["pool"]["leases"] == 0
        await service.aclose()
