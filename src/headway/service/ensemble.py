"""Ensembles: a chain of resident models as one model, written in a YAML file. What passes between them stays in memory.

    steps:                                   # values: what a model answers is what the next one is asked
      - model: clean
      - model: sentiment

    inputs: [{name: text, datatype: BYTES, shape: [-1]}]          # named tensors
    outputs: [{name: scores, datatype: FP32, shape: [-1, 3]}]
    steps:
      - model: tokenise                      # an id, an alias, id@version; another ensemble too
        inputs: {strings: text}              # the model's input: a name here
        outputs: {ids: ids, mask: mask}      # the model's output: a name here
      - model: classifier
        inputs: {input_ids: ids, attention_mask: mask}
        outputs: {logits: scores}

A step starts as soon as its inputs are there, so steps that do not need each other run side by side. Each step has a
lease on its own model while it runs, and no longer: an ensemble never holds a model while it waits for another one, so
that two of them can not wait for each other's memory. An ensemble has no weights and takes no memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

import headway_wire as wire
from headway.config import ModelConfig
from headway.core.infer import Inferred, InferRequest
from headway.errors import HeadwayError, InternalError, InvalidConfig, InvalidRequest, InvariantBroken, ShuttingDown
from headway.observe.clock import Clock
from headway.worker.resident import ClientSettings

MAX_STEPS = 32
MAX_DEPTH = 4
"""Ensembles within ensembles."""

Infer = Callable[[InferRequest], Awaitable[Inferred]]
"""How a step's model is asked (Service.infer)."""


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model's part."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    inputs: dict[str, str] = {}
    """The model's input names to names of the ensemble. Empty: it is asked with the value."""
    outputs: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    """Of each request to it."""


class Ensemble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=MAX_STEPS)]
    inputs: list[wire.TensorSpec] = []
    outputs: list[wire.TensorSpec] = []

    @property
    def has_tensors(self) -> bool:
        """Whether named tensors pass through it; else a value does."""
        return bool(self.inputs)

    def signature(self) -> wire.Signature:
        """What it takes and gives."""
        return wire.Signature(
            task="tensor",
            platform="ensemble",
            inputs=self.inputs,
            outputs=self.outputs,
            takes_values=not self.has_tensors,
            facts={"steps": [step.model for step in self.steps]},
        )


def check_ensemble(ensemble: Ensemble, where: str) -> None:
    """Raises InvalidConfig for names that nobody makes, that two make, or that wait for each other."""
    if not ensemble.has_tensors:
        odd = next((step.model for step in ensemble.steps if step.inputs or step.outputs), None)
        if odd is not None or ensemble.outputs:
            raise InvalidConfig(
                f"{where}: it has no inputs, so a value passes through it: leave inputs and outputs out"
            )
        return
    made = _check_made_once(ensemble, where)
    for step in ensemble.steps:
        if not step.inputs or not step.outputs:
            raise InvalidConfig(f"{where}: step {step.model} needs inputs and outputs, since the ensemble has tensors")
        _check_known(step.inputs.values(), made, f"{where}: step {step.model} reads")
    _check_known((spec.name for spec in ensemble.outputs), made, f"{where}: its outputs name")
    if not ensemble.outputs:
        raise InvalidConfig(f"{where} has inputs and no outputs: name what it gives")
    _check_order(ensemble, where)


def _check_made_once(ensemble: Ensemble, where: str) -> frozenset[str]:
    made: set[str] = set()
    names = [spec.name for spec in ensemble.inputs] + [n for step in ensemble.steps for n in step.outputs.values()]
    for name in names:
        if name in made:
            raise InvalidConfig(f"{where}: {name!r} is made twice: give one of them another name")
        made.add(name)
    return frozenset(made)


def _check_known(names: Iterable[str], made: frozenset[str], what: str) -> None:
    for name in names:
        if name not in made:
            raise InvalidConfig(f"{what} {name!r}, which nothing makes; there is: {', '.join(sorted(made))}")


def _check_order(ensemble: Ensemble, where: str) -> None:
    """Steps may stand in any order, but not in a circle."""
    known = {spec.name for spec in ensemble.inputs}
    left = list(ensemble.steps)
    while left:
        ready = [step for step in left if known.issuperset(step.inputs.values())]
        if not ready:
            raise InvalidConfig(f"{where}: these wait for each other: {', '.join(step.model for step in left)}")
        for step in ready:
            known.update(step.outputs.values())
        left = [step for step in left if step not in ready]


async def run_ensemble(ensemble: Ensemble, request: InferRequest, infer: Infer, clock: Clock) -> Inferred:
    """The answer of the whole. The first step that fails ends the others, and its error names it.

    The request's timeout_s is for all steps together: each is given what is left.
    """
    if request.timeout_s is not None:
        infer = _within(infer, clock, clock.now() + request.timeout_s)
    if ensemble.has_tensors:
        return await _Run(ensemble, request, infer).tensors()
    value, labels = request.value, None
    if request.tensors:
        raise InvalidRequest(f"{request.model} takes a value and no tensors: POST /predict", param="input_data")
    for index, step in enumerate(ensemble.steps):
        made = await _ask(infer, request, step, index, value=value)
        value, labels = made.value, made.labels
    return Inferred(model=request.model, version="", value=value, labels=labels)


def _within(infer: Infer, clock: Clock, deadline: float) -> Infer:
    def ask(request: InferRequest) -> Awaitable[Inferred]:
        return infer(replace(request, timeout_s=max(0.0, deadline - clock.now())))

    return ask


class _Run:
    """One request's way through steps with tensors."""

    def __init__(self, ensemble: Ensemble, request: InferRequest, infer: Infer) -> None:
        self._ensemble = ensemble
        self._request = request
        self._infer = infer
        loop = asyncio.get_running_loop()
        names = {name for step in ensemble.steps for name in step.outputs.values()}
        self._made: dict[str, asyncio.Future[wire.Tensor]] = {name: loop.create_future() for name in names}
        for tensor in request.tensors:
            self._made[tensor.name] = loop.create_future()
            self._made[tensor.name].set_result(tensor)

    async def tensors(self) -> Inferred:
        """All outputs that are wanted."""
        wanted = self._wanted()
        try:
            async with asyncio.TaskGroup() as group:
                for index, step in enumerate(self._ensemble.steps):
                    group.create_task(self._run(step, index))
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None
        return Inferred(model=self._request.model, version="", tensors=[self._made[name].result() for name in wanted])

    def _wanted(self) -> list[str]:
        """Raises InvalidRequest for inputs that are missing or unknown, and for unknown outputs."""
        inputs, outputs = [[spec.name for spec in specs] for specs in (self._ensemble.inputs, self._ensemble.outputs)]
        given = [tensor.name for tensor in self._request.tensors]
        required = [spec.name for spec in self._ensemble.inputs if not spec.is_optional]
        odd = next((n for n in given if n not in inputs or given.count(n) > 1), None)
        missing = next((name for name in required if name not in given), None)
        if odd is not None or missing is not None:
            what = f"{odd!r} is no input, or comes twice" if missing is None else f"the input {missing!r} is missing"
            raise InvalidRequest(f"{what}; {self._request.model} takes {', '.join(inputs)}", param=odd or missing)
        wanted = list(self._request.outputs) or outputs
        odd = next((name for name in wanted if name not in outputs), None)
        if odd is not None:
            raise InvalidRequest(f"{odd!r} is no output; {self._request.model} gives {', '.join(outputs)}", param=odd)
        return wanted

    async def _run(self, step: Step, index: int) -> None:
        inputs = [
            msgspec.structs.replace(await self._made[source], name=name)
            for name, source in step.inputs.items()
            if source in self._made
        ]
        made = await _ask(self._infer, self._request, step, index, tensors=inputs)
        found = {tensor.name: tensor for tensor in made.tensors}
        for name, target in step.outputs.items():
            if name not in found:
                there = ", ".join(found) or "none"
                raise InternalError(f"step {step.model} gave no output {name!r}; it gave: {there}")
            self._made[target].set_result(msgspec.structs.replace(found[name], name=target))


async def _ask(
    infer: Infer,
    request: InferRequest,
    step: Step,
    index: int,
    *,
    value: Any = None,
    tensors: Sequence[wire.Tensor] = (),
) -> Inferred:
    """Asks a step's model. Raises what it raises, with the step's name before its words."""
    depth = request.depth + 1
    if depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{request.model} holds ensembles more than {MAX_DEPTH} deep: it may hold itself", param="model"
        )
    asked = InferRequest(
        request_id=f"{request.request_id}-{index}",
        model=step.model,
        tensors=tensors,
        value=value,
        parameters={**step.parameters, **request.parameters},
        outputs=list(step.outputs),
        timeout_s=request.timeout_s,
        depth=depth,
    )
    try:
        return await infer(asked)
    except HeadwayError as error:
        raise error.within(f"step {step.model}") from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the others."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class EnsembleClient:
    """An ensemble among the residents (worker/resident.ResidentClient)."""

    def __init__(self, name: str, model: ModelConfig, settings: ClientSettings) -> None:
        self.name = name
        self.ended: asyncio.Future[HeadwayError] = asyncio.get_running_loop().create_future()
        """Never done: an ensemble has no process that could be lost."""
        self._ensemble: Ensemble | None = None
        self._clock = settings.clock
        self._num_requests = 0
        self._open: set[asyncio.Task[Inferred]] = set()
        self._is_shut_down = False

    async def load(self, message: wire.Load) -> wire.Ready:
        """Reads the file. Raises InvalidConfig."""
        from headway.service.ensemble_file import read_ensemble  # PyYAML: not for who has no ensembles

        self._ensemble = await asyncio.to_thread(read_ensemble, Path(message.source))
        return wire.Ready(info=msgspec.to_builtins(self._ensemble.signature()))

    async def run(self, request: InferRequest, infer: Infer) -> Inferred:
        """The answer of the whole; `infer` asks a step's model. Raises what the first failing step does."""
        if self._ensemble is None:
            raise InvariantBroken(f"the ensemble {self.name} is asked before it is loaded")
        self._num_requests += 1
        task = asyncio.create_task(run_ensemble(self._ensemble, request, infer, self._clock))
        self._open.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self._is_shut_down:
                raise ShuttingDown("the server shut down before the ensemble's answer was whole") from None
            raise
        finally:
            self._open.discard(task)

    def stats(self) -> dict[str, float]:
        """How many were asked, and how many are open."""
        return {"client_open_requests": float(len(self._open)), "infer_requests_total": float(self._num_requests)}

    def shut_down_requests(self) -> None:
        """Ends every open request with ShuttingDown."""
        self._is_shut_down = True
        for task in self._open:
            task.cancel()

    async def close(self, grace_s: float = 2.0) -> None:
        """Ends every open request."""
        self.shut_down_requests()
        await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """None."""
        return ()
