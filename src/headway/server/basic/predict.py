"""POST /predict: one question to any model, as JSON or as a form with files.

{"model_id", "input_data": any, "parameters"?, "timeout_s"?}
    named tensors in     {"model_id", "model_version", "outputs": {name: {"datatype", "shape", "data"}}}
    anything else in     {"model_id", "model_version", "predictions": any, "labels"?}

A language model continues a text or a list of them ("parameters" are those of /generate), an encoder makes vectors of
them; every other model gets what predict_input.py says. multipart/form-data has the same fields as texts ("parameters"
in JSON; "input_data" in JSON where it is some, else as text), or files in place of input_data: the bytes of one, a list
of several.
"""

import math
from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import msgspec
import orjson
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType
from pydantic import Field
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

import headway_wire as wire
from headway.core.embedding import EmbedRequest
from headway.core.infer import Inferred, InferRequest
from headway.core.request import TextPrompt
from headway.errors import InvalidRequest, ModelNotFound
from headway.server.basic.answers import PlainAnswers
from headway.server.basic.convert import plain_requests
from headway.server.basic.predict_input import check_depth, is_tensors, read_tensors, read_value
from headway.server.basic.schema import GenerateManyBody
from headway.server.body import Body, ModelName, check_encoding, check_fields, describe, read_body
from headway.server.disconnect import run_watched
from headway.server.errors import json_response
from headway.server.generation import Generation
from headway.server.headers import find_header
from headway.server.inferring import load_headers, run_inference
from headway.server.openai.embeddings import to_floats
from headway.server.openai.metered import run_metered
from headway.server.openapi import takes
from headway.server.state import state_of
from headway.service.frameworks import speaks_text
from headway.service.protocol import ModelCard

router = APIRouter(tags=["Plain"])

MAX_FILES = 64
"""Of one form."""
MAX_EMPTY_LISTS = 1 << 20
"""Of an output: a caller names shapes in few bytes, and what is told of them must not be more than he could send."""


class PredictBody(Body):
    """POST /predict."""

    model_id: ModelName
    input_data: Any = Field(None, description="Text, lists, images, named tensors: whatever the model takes.")
    parameters: dict[str, Any] | None = None
    timeout_s: float | None = Field(None, gt=0)


class TensorOut(msgspec.Struct, frozen=True):
    """A named output."""

    datatype: str
    shape: list[int]
    data: Any
    """Nested as the shape is."""


class TensorsOut(msgspec.Struct, frozen=True):
    """The answer to named tensors."""

    model_id: str
    """The name that was asked for."""
    model_version: str
    outputs: dict[str, TensorOut]
    labels: Sequence[str] | UnsetType = UNSET


class PredictionsOut(msgspec.Struct, frozen=True):
    """The answer to anything else."""

    model_id: str
    """The name that was asked for."""
    model_version: str
    predictions: Any
    labels: Sequence[str] | UnsetType = UNSET


@router.post("/predict", openapi_extra=takes(PredictBody))
async def predict(request: Request) -> Response:
    """One question to any model."""
    state = state_of(request)
    arrived_s = state.arrival_s()
    body = await _read(request)
    try:
        card = state.service.card(body.model_id)
    except ModelNotFound as error:
        raise ModelNotFound(error.message, param="model_id") from None
    if speaks_tensors(card):
        return await _infer(request, card, body, arrived_s)
    if card.type == "embedding" or card.info.get("task") == "embed":
        return await _embed(request, card, body, arrived_s)
    return await _continue(request, card, body, arrived_s)


def speaks_tensors(card: ModelCard) -> bool:
    """Whether a model takes tensors or values; else it speaks tokens."""
    return not speaks_text(card.framework, card.type)


async def _infer(request: Request, card: ModelCard, body: PredictBody, arrived_s: float) -> Response:
    state = state_of(request)
    check_depth(body.parameters, "parameters")
    tensors: Sequence[wire.Tensor] = ()
    value = None
    if is_tensors(body.input_data):
        tensors = await read_tensors(body.input_data, lambda: state.service.signature(card.id))
    else:
        value = await run_watched(request.receive, read_value(body.input_data, card.type, state.media), request.scope)
    wanted = InferRequest(
        request_id=f"infer-{token_hex(16)}",
        model=card.id,
        tensors=tensors,
        value=value,
        parameters=body.parameters or {},
        timeout_s=body.timeout_s,
    )
    made = await run_inference(request, wanted, arrived_s)
    if state.native_door is not None:
        state.native_door.learn_predict(request.scope, card.id)
    return json_response(_answer(card.id, made), headers=load_headers(made))


def _answer(name: str, made: Inferred) -> TensorsOut | PredictionsOut:
    labels = UNSET if made.labels is None else made.labels
    if not made.tensors:
        return PredictionsOut(name, made.version, made.value, labels)
    outputs = {tensor.name: tensor_out(tensor) for tensor in made.tensors}
    return TensorsOut(name, made.version, outputs, labels)


def tensor_out(tensor: wire.Tensor) -> TensorOut:
    """As JSON tells it, nested as its shape is. Raises InvalidRequest for what JSON has no words for."""
    from headway.server.tensors import json_elements

    elements = json_elements(tensor)
    flat = elements if isinstance(elements, list) else elements.tolist()
    return TensorOut(tensor.datatype, tensor.shape, nest(flat, tensor.shape))


def nest(flat: list[Any], shape: Sequence[int]) -> Any:
    """Elements in row-major order as nested lists; of no axes the one. Raises InvalidRequest for a great many lists of
    nothing."""
    if not shape:
        return flat[0]
    if 0 in shape:
        return _nest_nothing(shape)
    rows = flat
    for size in reversed(shape[1:]):
        rows = [rows[start : start + size] for start in range(0, len(rows), size)]
    return rows


def _nest_nothing(shape: Sequence[int]) -> Any:
    """The lists of a shape without elements, which may be many."""
    num_lists = math.prod(shape[: shape.index(0)])
    if num_lists > MAX_EMPTY_LISTS:
        raise InvalidRequest(
            f"an output has the shape {list(shape)}: {num_lists} empty lists, at most {MAX_EMPTY_LISTS} are told; "
            "POST /v2/models/MODEL/infer tells it flat"
        )
    import numpy as np

    return np.empty(shape, np.uint8).tolist()


async def _continue(request: Request, card: ModelCard, body: PredictBody, arrived_s: float) -> Response:
    """A language model's: as POST /generate."""
    state = state_of(request)
    prompts = _texts(body.input_data)
    fields = {"model": card.id, "prompts": prompts, **(body.parameters or {})}
    if body.timeout_s is not None:
        fields.setdefault("timeout_s", body.timeout_s)
    plain = check_fields(fields, GenerateManyBody)
    requests = plain_requests(plain, prompts, card.id, await state.service.generation_defaults(card.id))
    shape = PlainAnswers(prompts, return_full_text=bool(plain.return_full_text))

    async def run() -> PredictionsOut:
        async with await Generation.open(state, requests, arrived_s) as generation:
            texts = shape.many(generation, await generation.collect()).generated_texts
        is_one = isinstance(body.input_data, str) and len(texts) == 1
        return PredictionsOut(card.id, card.version, texts[0] if is_one else texts)

    return json_response(await run_watched(request.receive, run(), request.scope))


async def _embed(request: Request, card: ModelCard, body: PredictBody, arrived_s: float) -> Response:
    """An encoder's: as POST /v1/embeddings."""
    if body.parameters:
        raise InvalidRequest("an encoder has no parameters here: POST /v1/embeddings takes them", param="parameters")
    wanted = EmbedRequest(
        request_id=f"embd-{token_hex(16)}",
        model=card.id,
        inputs=[TextPrompt(text) for text in _texts(body.input_data)],
    )
    made = await run_metered(request, "embeddings", card.id, arrived_s, state_of(request).service.embed(wanted))
    state = state_of(request)
    if state.native_door is not None:
        state.native_door.learn_texts(request.scope, card.id)
    vectors = [to_floats(vector) for vector in made.vectors]
    return json_response(PredictionsOut(card.id, card.version, vectors))


def _texts(value: Any) -> list[str]:
    """A text, or a list of them."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            f"input_data is {describe(value)}; this model takes a text or a list of texts, none missing",
            param="input_data",
        )
    return texts


async def _read(request: Request) -> PredictBody:
    """Raises InvalidRequest, PayloadTooLarge, UnsupportedEncoding."""
    content_type = (find_header(request.scope, b"content-type") or "").partition(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        body = await read_body(request, PredictBody)
    else:
        check_encoding(request.scope)
        body = check_fields(await _read_form(request), PredictBody)
    if body.input_data is None:
        raise InvalidRequest("input_data is missing: it must be given", param="input_data")
    return body


async def _read_form(request: Request) -> dict[str, Any]:
    """A form's fields as a body's. Files are in memory or in temporary files until the form is closed."""
    try:
        async with request.form(max_files=MAX_FILES, max_fields=16) as form:
            return await _fields_of(form)
    except (MultiPartException, HTTPException, UnicodeError) as error:
        words = error.detail if isinstance(error, HTTPException) else str(getattr(error, "message", error))
        raise InvalidRequest(f"the body is no valid form: {words}") from None


async def _fields_of(form: FormData) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    files: list[bytes] = []
    for name, part in form.multi_items():
        if isinstance(part, UploadFile):
            files.append(await part.read())
        elif name in fields:
            raise InvalidRequest(f"{name[:64]} comes twice: send it once", param=name[:64])
        else:
            fields[name] = _form_value(name, part)
    if files and "input_data" in fields:
        raise InvalidRequest("input_data is given as a field and as files: send one of them", param="input_data")
    if files:
        fields["input_data"] = files[0] if len(files) == 1 else files
    return fields


def _form_value(name: str, text: str) -> Any:
    if name == "model_id":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if name == "input_data":
            return text
        raise InvalidRequest(f"{name[:64]} is no JSON: {error.msg}", param=name[:64]) from None
