"""Language models and encoders as models that take tensors, in the names that Triton's vLLM backend has.

text-generation  text_input BYTES [1], sampling_parameters BYTES [1] (JSON), exclude_input_in_output BOOL [1]
                 -> text_output BYTES [n], finish_reason BYTES [n]
embedding        text_input BYTES [num_texts] -> embedding FP32 [num_texts, size]

The parameters of a request are sampling parameters too; those in sampling_parameters win.
"""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import headway_wire as wire
from headway.core.embedding import EmbedRequest
from headway.core.infer import Inferred, InferRequest
from headway.core.request import GenerateRequest, TextPrompt
from headway.errors import InvalidRequest, UnsupportedFeature
from headway.server.basic.convert import plain_requests
from headway.server.basic.schema import GenerateOneBody
from headway.server.body import check_fields, parse_json
from headway.server.generation import Choice, Generation
from headway.server.openai.metered import metered
from headway.server.state import ServerState
from headway.service.frameworks import speaks_text
from headway.service.protocol import ModelCard
from headway_wire.tensors import pack_bytes, unpack_bytes

Spec = tuple[str, str, list[int], bool]
"""Name, datatype, shape, whether it may be left out."""
_LANGUAGE_INPUTS: Sequence[Spec] = (
    ("text_input", "BYTES", [1], False),
    ("stream", "BOOL", [1], True),
    ("sampling_parameters", "BYTES", [1], True),
    ("exclude_input_in_output", "BOOL", [1], True),
)
_LANGUAGE_OUTPUTS: Sequence[Spec] = (("text_output", "BYTES", [-1], False), ("finish_reason", "BYTES", [-1], False))
_ENCODER_INPUTS: Sequence[Spec] = (("text_input", "BYTES", [-1], False),)
_ENCODER_OUTPUTS: Sequence[Spec] = (("embedding", "FP32", [-1, -1], False),)


def is_text_model(card: ModelCard) -> bool:
    """Whether the service generates or embeds by it; else it takes tensors itself."""
    return speaks_text(card.framework, card.type)


def is_encoder(card: ModelCard) -> bool:
    """Of those that speak text."""
    return card.type == "embedding" or card.info.get("task") == "embed"


def text_signature(card: ModelCard) -> wire.Signature:
    """What such a model takes and gives."""
    inputs, outputs = (_ENCODER_INPUTS, _ENCODER_OUTPUTS) if is_encoder(card) else (_LANGUAGE_INPUTS, _LANGUAGE_OUTPUTS)
    return wire.Signature(
        task=card.type, platform=card.framework, inputs=_make_specs(inputs), outputs=_make_specs(outputs)
    )


async def embed_texts(state: ServerState, request: InferRequest, arrived_s: float) -> Inferred:
    """An encoder's vectors. Raises HeadwayError."""
    inputs = _read_inputs(request, _ENCODER_INPUTS)
    if request.parameters:
        raise InvalidRequest("an encoder has no parameters here: POST /v1/embeddings takes them", param="parameters")
    texts = [TextPrompt(text) for text in _texts(inputs["text_input"])]
    wanted = EmbedRequest(request_id=request.request_id, model=request.model, inputs=texts)
    made = await metered(state, "embeddings", request.model, arrived_s, state.service.embed(wanted))
    size = len(made.vectors[0]) // 4
    shape = [len(made.vectors), size]
    vectors = wire.Tensor(name="embedding", datatype="FP32", shape=shape, data=b"".join(made.vectors))
    return Inferred(model=request.model, version="", tensors=[vectors])


async def generate_text(state: ServerState, request: InferRequest, arrived_s: float) -> Inferred:
    """What a language model says, whole. Raises HeadwayError."""
    if is_stream_wanted(request):
        raise UnsupportedFeature(
            "stream is true: ModelStreamInfer and POST .../generate_stream stream, this answers in one piece",
            param="inputs",
        )
    async with await Generation.open(state, await text_requests(state, request), arrived_s) as generation:
        choices = await generation.collect()
    return Inferred(model=request.model, version="", tensors=text_outputs(choices, _prefix(request)))


async def text_requests(state: ServerState, request: InferRequest) -> list[GenerateRequest]:
    """What a language model is asked. Raises InvalidRequest that names the input or the parameter."""
    inputs = _read_inputs(request, _LANGUAGE_INPUTS)
    own_timeout = {} if request.timeout_s is None else {"timeout_s": request.timeout_s}
    parameters = {**own_timeout, **request.parameters, **_sampling_parameters(inputs)}
    return await sampled_requests(state, request.model, _one_text(inputs["text_input"]), parameters)


async def sampled_requests(
    state: ServerState, model: str, text: str, parameters: Mapping[str, Any]
) -> list[GenerateRequest]:
    """The same of a text. `parameters`: in the names of POST /generate. Raises InvalidRequest."""
    for name in ("prompt", "prompts", "model", "return_full_text"):
        if name in parameters:
            raise InvalidRequest(f"{name} is no parameter of this route: leave it out", param=name)
    body = check_fields({**parameters, "prompt": text}, GenerateOneBody)
    return plain_requests(body, [text], model, await state.service.generation_defaults(model))


def text_outputs(choices: Sequence[Choice], prefix: str = "") -> list[wire.Tensor]:
    """What was said, and why it ended."""
    texts = pack_bytes([(prefix + choice.text).encode() for choice in choices])
    reasons = pack_bytes([(choice.finish_reason or "").encode() for choice in choices])
    return [
        wire.Tensor(name="text_output", datatype="BYTES", shape=[len(choices)], data=texts),
        wire.Tensor(name="finish_reason", datatype="BYTES", shape=[len(choices)], data=reasons),
    ]


def is_stream_wanted(request: InferRequest) -> bool:
    """Its input `stream`."""
    return _flag(request, "stream", False)


def new_request_id() -> str:
    """Of one that has none of its own."""
    return f"infer-{token_hex(16)}"


def _make_specs(specs: Sequence[Spec]) -> list[wire.TensorSpec]:
    return [
        wire.TensorSpec(name=name, datatype=datatype, shape=shape, is_optional=is_optional)
        for name, datatype, shape, is_optional in specs
    ]


def _prefix(request: InferRequest) -> str:
    """The prompt, where the text is wanted with it."""
    if _flag(request, "exclude_input_in_output", True):
        return ""
    return next(_one_text(tensor) for tensor in request.tensors if tensor.name == "text_input")


def _flag(request: InferRequest, name: str, default: bool) -> bool:
    tensor = next((tensor for tensor in request.tensors if tensor.name == name and tensor.datatype == "BOOL"), None)
    return default if tensor is None else bytes(tensor.data) != b"\0"


def _read_inputs(request: InferRequest, specs: Sequence[Spec]) -> dict[str, wire.Tensor]:
    """The inputs by name. Raises InvalidRequest for one that is unknown, missing, or has another datatype."""
    known = {name: datatype for name, datatype, _, _ in specs}
    found: dict[str, wire.Tensor] = {}
    for tensor in request.tensors:
        if tensor.name not in known or tensor.name in found:
            what = "came twice" if tensor.name in found else f"is none of the model's; those are {', '.join(known)}"
            raise InvalidRequest(f"input {tensor.name[:100]!r} {what}", param="inputs")
        if tensor.datatype != known[tensor.name]:
            raise InvalidRequest(
                f"input {tensor.name!r} has the datatype {tensor.datatype}; the model takes {known[tensor.name]}",
                param="inputs",
            )
        found[tensor.name] = tensor
    missing = [name for name, _, _, is_optional in specs if not is_optional and name not in found]
    if missing:
        raise InvalidRequest(f"input {missing[0]!r} is missing: it must be given", param="inputs")
    return found


def _texts(tensor: wire.Tensor) -> list[str]:
    texts = []
    for place, element in enumerate(unpack_bytes(tensor.data)):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"element {place} of {tensor.name} is no UTF-8: {error.reason} at byte {error.start}", param="inputs"
            ) from None
    if not texts:
        raise InvalidRequest(f"{tensor.name} has no element: give it a text", param="inputs")
    return texts


def _one_text(tensor: wire.Tensor) -> str:
    texts = _texts(tensor)
    if len(texts) != 1:
        raise InvalidRequest(
            f"{tensor.name} has {len(texts)} elements; it takes one: send a request for each", param="inputs"
        )
    return texts[0]


def _sampling_parameters(inputs: Mapping[str, wire.Tensor]) -> Mapping[str, Any]:
    """The JSON object of that input."""
    tensor = inputs.get("sampling_parameters")
    if tensor is None:
        return {}
    parameters = parse_json(_one_text(tensor).encode())
    if not isinstance(parameters, dict):
        raise InvalidRequest("sampling_parameters is no JSON object", param="inputs")
    return parameters
