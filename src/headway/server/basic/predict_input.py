"""What /predict is given as input_data, made into what a model is asked: tensors, or a value.

1. An object whose every entry is an object with "data": named tensors. "shape" may be left out where "data" is
   nested or flat; "datatype" where the model's signature has the name, or the data tell it (numbers, strings, true).
2. {"b64": "..."} anywhere, alone in its object: the bytes.
3. Of a model of images a string, or a list of strings: a data: URI, an http(s) URL, else base64; and {"url": "..."}
   anywhere, alone in its object: the bytes behind it (server/media). Other models get a URL as the text that it is.
4. Everything else is the value as it is.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import headway_wire as wire
from headway.config import ModelType
from headway.errors import InvalidRequest
from headway.server.body import describe

if TYPE_CHECKING:
    from headway.server.media import MediaFetcher

MAX_URLS = 64
MAX_DEPTH = 64
"""Lists and objects within each other, of a value: what is nested deeper would be no data of a model."""
_TENSOR_KEYS = frozenset({"data", "shape", "datatype"})
_PARAM = "input_data"


def is_tensors(value: Any) -> bool:
    """1."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(each, dict) and "data" in each and each.keys() <= _TENSOR_KEYS for each in value.values())


async def read_tensors(
    value: Mapping[str, Mapping[str, Any]], signature: Callable[[], Awaitable[Mapping[str, Any]]]
) -> list[wire.Tensor]:
    """1. `signature` is asked where a datatype is left out. Raises InvalidRequest that names the place."""
    from headway.server.tensors import tensor_from_json

    known: dict[str, str] = {}
    if any(each.get("datatype") is None for each in value.values()):
        known = {spec["name"]: spec["datatype"] for spec in (await signature()).get("inputs", ())}
    tensors = []
    for name, each in value.items():
        param = f"{_PARAM}.{name[:64]}"
        shape = each.get("shape")
        datatype = each.get("datatype") or known.get(name) or guess_datatype(each["data"], param)
        shape = guess_shape(each["data"]) if shape is None else shape
        _check_types(datatype, shape, param)
        data = each["data"] if isinstance(each["data"], list) else [each["data"]]
        tensors.append(tensor_from_json(name, datatype, shape, data, param=param))
    return tensors


def guess_shape(data: Any) -> list[int]:
    """As the lists are nested, by the first of each; of a number or a text []."""
    shape: list[int] = []
    while isinstance(data, list):
        shape.append(len(data))
        if not data:
            break
        data = data[0]
    return shape


def guess_datatype(data: Any, param: str) -> str:
    """BOOL, BYTES, FP64 if any number has a point, else INT64. Raises InvalidRequest where nothing tells it."""
    kinds: set[type] = set()
    rows = [data]
    while rows:
        row = rows.pop()
        if isinstance(row, list):
            rows += row
        else:
            kinds.add(type(row))
    for datatype, found in (
        ("BOOL", {bool}),
        ("BYTES", {str}),
        ("INT64", {int}),
        ("FP64", {float}),
        ("FP64", {int, float}),
    ):
        if kinds == found:
            return datatype
    raise InvalidRequest(f"{param} has no datatype, and its data do not tell one: give it", param=param)


def _check_types(datatype: Any, shape: Any, param: str) -> None:
    if not isinstance(datatype, str):
        raise InvalidRequest(f"{param}.datatype is {describe(datatype)}; it must be a string", param=param)
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise InvalidRequest(f"{param}.shape is {describe(shape)}; it must be a list of integers", param=param)


async def read_value(value: Any, model_type: ModelType, fetcher: "MediaFetcher") -> Any:
    """2 to 4: JSON's types, and bytes. Raises InvalidRequest that names the place, PayloadTooLarge."""
    if model_type == "image-classification":
        return await _Reader(fetcher).read_image(value, _PARAM)
    return await _Reader(None).read(value, _PARAM)


class _Reader:
    """Of one request. Without a fetcher URLs are texts."""

    def __init__(self, fetcher: "MediaFetcher | None") -> None:
        self._fetcher = fetcher
        self._num_urls = 0
        self._bytes_left = 0 if fetcher is None else fetcher.max_bytes

    async def read_image(self, value: Any, path: str) -> Any:
        """3, else as read()."""
        if isinstance(value, str):
            return await self._read_image_text(value, path)
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return [await self._read_image_text(each, f"{path}[{index}]") for index, each in enumerate(value)]
        return await self.read(value, path)

    async def read(self, value: Any, path: str, depth: int = 0) -> Any:
        """2 and 4."""
        if depth > MAX_DEPTH:
            raise _too_deep(_PARAM)
        if isinstance(value, dict):
            return await self._read_object(value, path, depth)
        if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
            return [await self.read(each, f"{path}[{index}]", depth + 1) for index, each in enumerate(value)]
        return value

    async def _read_object(self, value: Mapping[str, Any], path: str, depth: int) -> Any:
        if value.keys() == {"b64"}:
            return decode_base64(value["b64"], f"{path}.b64")
        if value.keys() == {"url"} and self._fetcher is not None:
            return await self._fetch(self._fetcher, value["url"], f"{path}.url")
        return {name: await self.read(each, f"{path}.{name[:64]}", depth + 1) for name, each in value.items()}

    async def _read_image_text(self, text: str, path: str) -> bytes:
        if text.startswith(("http://", "https://")) and self._fetcher is not None:
            return await self._fetch(self._fetcher, text, path)
        head, comma, data = text.partition(",")
        if not head.startswith("data:"):
            return decode_base64(text, path)
        if not comma or not head.endswith(";base64"):
            raise InvalidRequest(
                f"{path} is a data: URI that is not in base64: send data:image/...;base64,...", param=path
            )
        return decode_base64(data, path)

    async def _fetch(self, fetcher: "MediaFetcher", url: Any, path: str) -> bytes:
        if not isinstance(url, str):
            raise InvalidRequest(f"{path} is {describe(url)}; it must be a string", param=path)
        self._num_urls += 1
        if self._num_urls > MAX_URLS:
            raise InvalidRequest(f"input_data has more than {MAX_URLS} URLs: send fewer at once", param=_PARAM)
        data = await fetcher.fetch(url, path, self._bytes_left)
        self._bytes_left -= len(data)
        return data


def check_depth(value: Any, param: str, depth: int = 0) -> None:
    """Raises InvalidRequest for what is nested deeper than a value may be."""
    if depth > MAX_DEPTH:
        raise _too_deep(param)
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            check_depth(each, param, depth + 1)


def _too_deep(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param} has over {MAX_DEPTH} lists and objects within each other: make it flatter", param=param
    )


def decode_base64(text: Any, path: str) -> bytes:
    """Raises InvalidRequest that names the place."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{path} is {describe(text)}; it must be a string of base64", param=path)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{path} is no base64: {error}", param=path) from None
