"""Models of plain functions behind the real app: identity of every datatype, a sum and a difference, a classifier."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
import msgspec
import numpy as np
import pytest
from fastapi import FastAPI
from tests.server.conftest import FakeService, client_of

import headway_wire as wire
from headway.core.embedding import Embedded, EmbedRequest
from headway.core.infer import Inferred, InferRequest
from headway.errors import ModelNotFound
from headway.server.app import make_app
from headway.service.protocol import ModelCard
from headway.worker.infer_check import check_infer
from headway_wire.tensors import from_array, to_array

KINDS = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
)  # fmt: skip
LABELS = ["zero", "one", "two", "three"]
CARD = ModelCard("identity", 1700000000, "ready", None, "here", framework="python", type="tensor", model="identity")
LANGUAGE = ModelCard("m", 1700000000, "ready", 2048, "here", model="m")
Model = Callable[[Sequence[wire.Tensor]], list[wire.Tensor]]


def spec(name: str, datatype: str, shape: list[int], *, is_optional: bool = False) -> wire.TensorSpec:
    return wire.TensorSpec(name=name, datatype=datatype, shape=shape, is_optional=is_optional)


def identity(tensors: Sequence[wire.Tensor]) -> list[wire.Tensor]:
    return [msgspec.structs.replace(tensor, name=f"OUT_{tensor.name}") for tensor in tensors]


def add_sub(tensors: Sequence[wire.Tensor]) -> list[wire.Tensor]:
    by_name = {tensor.name: to_array(tensor) for tensor in tensors}
    first, second = by_name["INPUT0"], by_name["INPUT1"]
    return [from_array("SUM", first + second), from_array("DIFF", first - second)]


_IDENTITY = wire.Signature(
    task="tensor",
    platform="python",
    inputs=[spec(kind, kind, [-1, -1], is_optional=True) for kind in KINDS],
    outputs=[spec(f"OUT_{kind}", kind, [-1, -1]) for kind in KINDS],
)
_ADD_SUB = wire.Signature(
    task="tensor",
    platform="python",
    inputs=[spec("INPUT0", "FP32", [-1, 4]), spec("INPUT1", "FP32", [-1, 4])],
    outputs=[spec("SUM", "FP32", [-1, 4]), spec("DIFF", "FP32", [-1, 4])],
)


@dataclass
class OipService(FakeService):
    """What it is asked is kept."""

    cards: list[ModelCard] = field(
        default_factory=lambda: [
            CARD,
            replace(CARD, id="add_sub", model="add_sub", version="2"),
            replace(CARD, id="add_sub@1", model="add_sub", version="1", state="cold"),
            replace(CARD, id="sum", model="add_sub", version="2", kind="alias"),
            replace(CARD, id="lab/with-slash", model="lab/with-slash"),
            LANGUAGE,
            replace(LANGUAGE, id="e", model="e", type="embedding"),
        ]
    )
    asked: list[InferRequest] = field(default_factory=list)
    fault: Exception | None = None
    gate: asyncio.Event | None = None
    """infer() waits for it."""
    num_cancelled: int = 0

    async def infer(self, request: InferRequest) -> Inferred:
        card = self.card(request.model)
        self.asked.append(request)
        self.changed.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                self.changed.set()
                raise
        if self.fault is not None:
            raise self.fault
        signature, model = (_ADD_SUB, add_sub) if card.model == "add_sub" else (_IDENTITY, identity)
        check_infer(signature, wire.Infer(request_id="1", tensors=list(request.tensors), outputs=list(request.outputs)))
        labels = LABELS if card.model == "add_sub" else None
        phases = (("read", 0.25),) if card.state == "cold" else ()
        return Inferred(
            model=card.model, version=card.version, tensors=model(request.tensors), labels=labels, load_phases=phases
        )

    async def signature(self, model: str) -> Mapping[str, Any]:
        signature = _ADD_SUB if self.card(model).model == "add_sub" else _IDENTITY
        plain: Mapping[str, Any] = msgspec.to_builtins(signature)
        return plain

    async def embed(self, request: EmbedRequest) -> Embedded:
        vectors = [np.array([len(each.text), 0.5], "<f4").tobytes() for each in request.inputs]  # type: ignore[union-attr]
        return Embedded(vectors, [1] * len(vectors))

    async def load(self, model: str) -> ModelCard:
        return self._set_state(model, "ready")

    async def unload(self, model: str) -> ModelCard:
        return self._set_state(model, "cold")

    def card(self, model: str) -> ModelCard:
        for card in self.cards:
            if model in (card.id, f"{card.model}@{card.version}"):
                return card
        raise ModelNotFound(f"there is no model {model!r} here", param="model")

    def _set_state(self, model: str, state: Any) -> ModelCard:
        if self.fault is not None:
            raise self.fault
        card = self.card(model)
        self.calls.append(f"{state} {model}")
        changed = replace(card, state=state, phases=(("read", 0.5),))
        self.cards[self.cards.index(card)] = changed
        return changed


@pytest.fixture
def service() -> OipService:
    return OipService()


@pytest.fixture
def app(service: OipService) -> FastAPI:
    return make_app(service)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app) as client:
        yield client


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    """An input in JSON."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def add_sub_inputs(**fields: Any) -> list[dict[str, Any]]:
    """INPUT0 with other fields, and INPUT1."""
    first = tensor("INPUT0", "FP32", [1, 4], [1, 2, 3, 4]) | fields
    return [
        {name: value for name, value in first.items() if value is not None},
        tensor("INPUT1", "FP32", [1, 4], [1, 1, 1, 1]),
    ]
