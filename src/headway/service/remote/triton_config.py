"""config.pbtxt of a Triton model, written from checked fields in protobuf's text format.

Fields and their names are those of Triton's ModelConfig; datatypes are the protocol's (FP32) or Triton's (TYPE_FP32).
"""

import json
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headway.errors import InvalidConfig
from headway_wire.tensors import ITEM_BYTES

_TYPES = {**{name: f"TYPE_{name}" for name in ITEM_BYTES}, "BYTES": "TYPE_STRING"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

Text = Annotated[str, Meta(max_length=1024)]


class TritonTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """input and output."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    data_type: str
    dims: list[Annotated[int, Meta(ge=-1)]]
    """Without the batch's axis where max_batch_size is not 0; -1: any."""


class TritonBatching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """dynamic_batching."""

    max_queue_delay_microseconds: Annotated[int, Meta(ge=0)] = 0
    preferred_batch_size: list[Annotated[int, Meta(ge=1)]] = []


class TritonModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be said of a model."""

    backend: Text = ""
    """python, onnxruntime, ...; "" with platform, or where Triton tells it from the file."""
    platform: Text = ""
    max_batch_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    input: list[TritonTensor] = []
    output: list[TritonTensor] = []
    instances: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Of instance_group, on the CPU."""
    dynamic_batching: TritonBatching | None = None
    parameters: dict[str, Text] = {}


def read_config(given: dict[str, Any], model: str) -> TritonModelConfig:
    """Raises InvalidConfig that names the field."""
    try:
        return msgspec.convert(given, TritonModelConfig)
    except msgspec.ValidationError as error:
        raise InvalidConfig(
            f"options.config of model {model} can not be used: {error}", param="options.config"
        ) from error


def check_model_name(name: str) -> str:
    """A name that is a folder's and nothing else. Raises InvalidConfig."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"the model is named {name[:200]!r} on its server; in a repository it must be 1 to 128 letters, digits, "
            "underscores, dots and dashes, of which the first is a letter or digit: give another one as options.model",
            param="options.model",
        )
    return name


def write_config(name: str, config: TritonModelConfig) -> str:
    """The file's text. Raises InvalidConfig for a datatype that there is not."""
    lines = [f"name: {_quote(name)}"]
    lines += [f"{field}: {_quote(value)}" for field in ("backend", "platform") if (value := getattr(config, field))]
    lines.append(f"max_batch_size: {config.max_batch_size}")
    lines += [f"input {_tensor(tensor)}" for tensor in config.input]
    lines += [f"output {_tensor(tensor)}" for tensor in config.output]
    lines.append(f"instance_group {{ kind: KIND_CPU count: {config.instances} }}")
    if config.dynamic_batching is not None:
        batching = config.dynamic_batching
        sizes = "".join(f" preferred_batch_size: {size}" for size in batching.preferred_batch_size)
        lines.append(
            f"dynamic_batching {{ max_queue_delay_microseconds: {batching.max_queue_delay_microseconds}{sizes} }}"
        )
    for key, value in config.parameters.items():
        lines.append(f"parameters {{ key: {_quote(key)} value {{ string_value: {_quote(value)} }} }}")
    return "\n".join(lines) + "\n"


def _tensor(tensor: TritonTensor) -> str:
    kind = tensor.data_type if tensor.data_type in _TYPES.values() else _TYPES.get(tensor.data_type)
    if kind is None:
        raise InvalidConfig(
            f"tensor {tensor.name!r} has the data_type {tensor.data_type[:50]!r}; there are {', '.join(_TYPES)}",
            param="options.config",
        )
    dims = ", ".join(str(size) for size in tensor.dims)
    return f"{{ name: {_quote(tensor.name)} data_type: {kind} dims: [ {dims} ] }}"


def _quote(text: str) -> str:
    """JSON's escapes are understood by protobuf's text format; what is beyond ASCII is written as it is."""
    return json.dumps(text, ensure_ascii=False)
