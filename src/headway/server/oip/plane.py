"""What both doors of the protocol do: they read what came into an Asked, and write what is made of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

import headway_wire as wire
from headway.core.infer import Inferred, InferRequest
from headway.errors import InvalidRequest
from headway.server.inferring import infer_metered
from headway.server.oip.classify import classify
from headway.server.oip.parameters import RequestParameters, WantedOutput
from headway.server.oip.targets import Target, find_target
from headway.server.oip.text_tensors import (
    embed_texts,
    generate_text,
    is_encoder,
    is_text_model,
    new_request_id,
    text_signature,
)
from headway.server.state import ServerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An inference as it was asked for."""

    target: Target
    id: str
    """The caller's, to be repeated; "": none."""
    tensors: Sequence[wire.Tensor]
    wanted: Sequence[WantedOutput]
    """Empty: all."""
    parameters: RequestParameters

    def __post_init__(self) -> None:
        """Raises InvalidRequest: a short request must not have a large output told a thousand times."""
        if len(self.wanted) > 1:
            ((name, count),) = Counter(output.name for output in self.wanted).most_common(1)
            if count > 1:
                raise InvalidRequest(f"outputs has {name[:100]!r} twice; ask for each output once", param="outputs")

    def request(self) -> InferRequest:
        """For the service."""
        return InferRequest(
            request_id=new_request_id(),
            model=self.target.key,
            tensors=self.tensors,
            parameters=self.parameters.for_model,
            outputs=[output.name for output in self.wanted],
            timeout_s=self.parameters.timeout_s,
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """What is told of it."""

    made: Inferred
    outputs: Sequence[tuple[wire.Tensor, bool]]
    """In the order of the wish; with each, whether it is told as binary data."""


async def infer(state: ServerState, asked: Asked, arrived_s: float) -> Answered:
    """Tensors to any model and back, to language models and encoders too. Raises HeadwayError."""
    with state.inferences.measure(asked.target.statistics_key):
        made = await _ask(state, asked, arrived_s)
        return Answered(made, choose_outputs(made, asked, await _labels(state, asked, made)))


async def _ask(state: ServerState, asked: Asked, arrived_s: float) -> Inferred:
    card = asked.target.card
    if not is_text_model(card):
        return await infer_metered(state, asked.request(), arrived_s)
    if is_encoder(card):
        return await embed_texts(state, asked.request(), arrived_s)
    return await generate_text(state, asked.request(), arrived_s)


async def _labels(state: ServerState, asked: Asked, made: Inferred) -> Sequence[str] | None:
    """Of a classifier, where they are wanted: the answer's, else the model's."""
    if made.labels is not None or not any(output.num_classes for output in asked.wanted):
        return made.labels
    return (await signature_of(state, asked.target)).labels


def choose_outputs(made: Inferred, asked: Asked, labels: Sequence[str] | None) -> Sequence[tuple[wire.Tensor, bool]]:
    """Those that were wanted, in that order, each in its form. Raises InvalidRequest."""
    is_binary = asked.parameters.is_binary
    if not asked.wanted:
        return [(tensor, is_binary) for tensor in made.tensors]
    by_name = {tensor.name: tensor for tensor in made.tensors}
    chosen = []
    for output in asked.wanted:
        tensor = by_name.get(output.name)
        if tensor is None:
            given = ", ".join(list(by_name)[:20])
            raise InvalidRequest(
                f"model {asked.target.name} gave no output {output.name[:100]!r}; it gave: {given}", param="outputs"
            )
        if output.num_classes:
            tensor = classify(tensor, output.num_classes, labels)
        chosen.append((tensor, is_binary if output.is_binary is None else output.is_binary))
    return chosen


async def signature_of(state: ServerState, target: Target) -> wire.Signature:
    """What a model takes and gives; loads one that takes tensors and was never loaded. Raises HeadwayError."""
    if is_text_model(target.card):
        return text_signature(target.card)
    return msgspec.convert(await state.service.signature(target.key), wire.Signature)


def is_model_ready(state: ServerState, name: str, version: str) -> bool:
    """Whether it is resident: a cold one is loaded by its next request, or by /load. Raises ModelNotFound."""
    return find_target(state, name, version).card.state == "ready"
