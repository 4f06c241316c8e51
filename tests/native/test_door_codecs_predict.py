"""What the native way makes of bodies of /predict and of their answers, against what the Python way makes of them."""

import asyncio
import json
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headway_wire as wire
from headway._native import DoorCodecs, PlainSignature
from headway.config import ModelType
from headway.core.infer import Inferred
from headway.errors import HeadwayError
from headway.server.basic.predict import PredictBody, PredictionsOut, _answer, _texts
from headway.server.basic.predict_input import is_tensors, read_tensors, read_value
from headway.server.body import parse_body
from headway.server.openai.embeddings import to_floats
from headway.worker.infer_check import check_infer
from headway_wire.tensors import ITEM_BYTES, pack_bytes


def signature_of(*inputs: tuple[str, str, list[int]], takes_values: bool = True) -> wire.Signature:
    specs = [wire.TensorSpec(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs]
    return wire.Signature(task="tensor", platform="test", inputs=specs, takes_values=takes_values)


VALUES = signature_of()


def ask_natively(signature: wire.Signature, body: bytes, *, takes_images: bool = False) -> tuple[bytes, int] | None:
    """The message, and the bytes of its inputs; None: left to Python."""
    inputs = [(spec.name, spec.datatype, spec.shape, spec.is_optional) for spec in signature.inputs]
    plain = PlainSignature(inputs, [], signature.takes_values)
    return DoorCodecs.read_predict(plain, body, takes_images, "7")


def ask_in_python(signature: wire.Signature, data: bytes, *, takes_images: bool = False) -> tuple[bytes, int]:
    """The same. Raises HeadwayError."""

    async def told() -> dict[str, Any]:
        return cast(dict[str, Any], msgspec.to_builtins(signature))

    body = parse_body(data, PredictBody)
    if body.input_data is None or body.parameters or body.timeout_s is not None:
        raise ValueError("a field that the native way does not take")
    kind: ModelType = "image-classification" if takes_images else "tensor"
    tensors, value = [], None
    if is_tensors(body.input_data):
        tensors = asyncio.run(read_tensors(body.input_data, told))
    else:
        value = asyncio.run(read_value(body.input_data, kind, cast(Any, None)))
    message = wire.Infer(request_id="7", tensors=tensors, value=value)
    check_infer(signature, message)
    num_bytes = len(value) if isinstance(value, bytes | str) else 0
    return wire.encode(message), num_bytes + sum(len(tensor.data) for tensor in tensors)


def check_same(signature: wire.Signature, body: bytes) -> bool:
    """Whether the native way took it; then as the Python way does."""
    made = ask_natively(signature, body)
    if made is not None:
        assert made == ask_in_python(signature, body)
    return made is not None


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
KEYS = st.text("aé😀 _.", max_size=3) | st.sampled_from(["b64", "url", "data", "shape", "datatype"])
JSON_VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(KEYS, inner, max_size=20), max_leaves=30
)


def body_of(value: Any, **options: Any) -> bytes:
    text = json.dumps({"model_id": "m", "input_data": value}, ensure_ascii=False, **options)
    return text.encode()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(JSON_VALUES, st.sampled_from([(",", ":"), (", ", ": "), ("\n,", " :\t")]))
def test_a_value_becomes_the_message_that_python_makes_of_it(value: Any, separators: tuple[str, str]) -> None:
    body = body_of(value, separators=separators)
    try:
        expected = ask_in_python(VALUES, body)
    except (HeadwayError, ValueError):
        assert ask_natively(VALUES, body) is None
    else:
        has_base64 = '"b64"' in body.decode()
        assert ask_natively(VALUES, body) == expected or has_base64


PIECES = [
    b"", b",", b"[", b"]", b"{", b"}", b'"', b"\\", b"null", b"true", b"1", b"-", b"-0", b".5", b"e5", b"E+2", b" ",
    b"0", b'"a":1,', b'"data":[1],', b'"shape":[1],', b'"datatype":"FP32",', b"\xff", b"\xed\xa0\x80", b"\x00",
    b"1e400", b"00", b'"timeout_s":5,', b'"parameters":{},', b"18446744073709551616", b"\\ud800", b"\\u00e9",
    b'{"b64":"aaaa"}', b"[]",
]  # fmt: skip
TENSORS = signature_of(("x", "FP32", [-1, 2]), ("é", "BYTES", [-1]), ("z", "INT64", []))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(JSON_VALUES, st.none()), st.data())
def test_a_spoilt_body_is_left_to_python_or_means_the_same_there(value: Any, data: Any) -> None:
    body = body_of(value if value is not None else TENSOR_INPUTS)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        piece = data.draw(st.sampled_from(PIECES))
        body = body[:place] + piece + body[place + data.draw(st.integers(0, 3)) :]
    check_same(VALUES, body)
    check_same(TENSORS, body)


TENSOR_INPUTS = {
    "x": {"datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, -3e-3, 0]},
    "é": {"data": ["ä", "", "b\n"]},
    "z": {"data": 5},
}


@pytest.mark.parametrize(
    "inputs",
    [
        TENSOR_INPUTS,
        TENSOR_INPUTS | {"x": {"data": [[1, 2], [3, 4]]}},
        TENSOR_INPUTS | {"x": {"data": [], "shape": [0, 2]}},
        TENSOR_INPUTS | {"z": {"data": [5], "shape": []}},
        TENSOR_INPUTS | {"x": {"data": [1, 2], "shape": [1, 2]}},
    ],
)
def test_named_tensors_are_read_as_python_reads_them(inputs: Any) -> None:
    assert check_same(TENSORS, body_of(inputs))
    assert ask_natively(TENSORS, body_of(inputs), takes_images=True) == ask_in_python(TENSORS, body_of(inputs))


@pytest.mark.parametrize(
    "inputs",
    [
        TENSOR_INPUTS | {"x": {"data": [[1, 2], [3]]}},
        TENSOR_INPUTS | {"x": {"data": [1, 2]}},
        TENSOR_INPUTS | {"x": {"data": [[1, "2"]]}},
        TENSOR_INPUTS | {"x": {"data": [[1, 1e39]]}},
        TENSOR_INPUTS | {"x": {"data": [[1, True]]}},
        TENSOR_INPUTS | {"x": {"data": [[1, 2]], "datatype": "FP64"}},
        TENSOR_INPUTS | {"z": {"data": 5.0}},
        TENSOR_INPUTS | {"z": {"data": [[5]]}},
        TENSOR_INPUTS | {"w": {"data": 5}},
        {"x": TENSOR_INPUTS["x"]},
    ],
)
def test_what_does_not_fit_the_model_is_left_to_python(inputs: Any) -> None:
    assert ask_natively(TENSORS, body_of(inputs)) is None
    with pytest.raises(HeadwayError):
        ask_in_python(TENSORS, body_of(inputs))


TEXT_INPUTS = st.text(max_size=5) | st.lists(st.text(max_size=5) | SCALARS, max_size=3) | JSON_VALUES


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(TEXT_INPUTS)
def test_an_encoders_texts_are_read_as_python_reads_them(value: Any) -> None:
    try:
        expected = _texts(parse_body(body_of(value), PredictBody).input_data)
    except HeadwayError:
        assert DoorCodecs.read_predict_texts(body_of(value)) is None
    else:
        assert DoorCodecs.read_predict_texts(body_of(value)) == expected


def test_an_encoders_vectors_are_told_as_python_tells_them() -> None:
    vectors = [np.random.default_rng(seed).normal(size=384).astype(np.float32).tobytes() for seed in range(3)]
    messages = [wire.encode(wire.Embedding(request_id=f"{i}", data=vector)) for i, vector in enumerate(vectors)]
    expected = msgspec.json.encode(PredictionsOut("mödel", "3", [to_floats(vector) for vector in vectors]))
    assert DoorCodecs.embedding_answer("mödel", "3", messages) == expected
    for vector in (b"123", np.array([np.nan], np.float32).tobytes()):
        odd = wire.encode(wire.Embedding(request_id="0", data=vector))
        assert DoorCodecs.embedding_answer("mödel", "3", [odd]) is None
    whole = messages[0]
    for cut in (b"", whole[:-1], whole + b"x", whole.replace(b"embedding", b"embeddinG"), b"\x82" + whole[1:]):
        assert DoorCodecs.embedding_answer("mödel", "3", [cut]) is None


def test_an_image_and_a_value_for_a_model_of_tensors_are_left_to_python() -> None:
    assert ask_natively(VALUES, body_of("aGk="), takes_images=True) is None
    assert ask_natively(signature_of(("x", "FP32", [1]), takes_values=False), body_of("text")) is None


@pytest.mark.parametrize("levels", [1, 59, 60, 61, 64, 65, 66, 1000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_value_has_a_depth(opening: str, levels: int) -> None:
    text = opening * levels + "1" + ("]" if opening == "[" else "}") * levels
    body = b'{"model_id":"m","input_data":' + text.encode() + b"}"
    assert check_same(VALUES, body) == (levels <= 60)


def test_the_model_is_found_without_reading_on() -> None:
    find = DoorCodecs.find_model_id
    assert find(b' {"model_id" : "m\\u00e9", "input') == "mé"
    assert find(b'{"input_data": [1, {"model_id": "no"}], "model_id": "m"') == "m"
    for none in (
        b"",
        b"[]",
        b"{}",
        b'{"model_id": 1}',
        b'{"model_id": ""}',
        b'{"model_id": "\xff"}',
        b'{"input_data": [',
    ):
        assert find(none) is None


def answer_natively(message: bytes) -> bytes | None:
    return DoorCodecs.predict_answer("mödel", "3", message)


def answer_in_python(message: bytes) -> bytes:
    """Raises HeadwayError and what json_response() does."""
    outputs = cast(wire.Outputs, wire.decode_up(message))
    made = Inferred(model="mödel", version="3", tensors=outputs.tensors, value=outputs.value, labels=outputs.labels)
    return msgspec.json.encode(_answer("mödel", made))


ANSWER_VALUES = st.recursive(
    SCALARS | st.floats() | st.binary(max_size=7),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=30,
)
LABELS = st.none() | st.lists(st.text(max_size=3), max_size=3)


@settings(max_examples=300)
@given(ANSWER_VALUES, LABELS)
def test_a_value_is_told_as_python_tells_it(value: Any, labels: list[str] | None) -> None:
    message = wire.encode(wire.Outputs(request_id="n1", value=value, labels=labels))
    assert answer_natively(message) == answer_in_python(message)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_number_is_told_as_python_tells_it(dtype: Any) -> None:
    values = np.frombuffer(np.random.default_rng(2).bytes(500_000), dtype)
    edges = np.array([0.0, -0.0, 1e15, 1e16, 1e-5, 1e-6] if dtype != np.float16 else [0.0, -0.0], dtype)
    values = np.concatenate([values[np.isfinite(values)], edges])
    tensor = wire.Tensor(name="y", datatype=f"FP{8 * values.itemsize}", shape=[len(values)], data=values.tobytes())
    message = wire.encode(wire.Outputs(request_id="n1", tensors=[tensor]))
    assert answer_natively(message) == answer_in_python(message)
    message = wire.encode(wire.Outputs(request_id="n1", value=values.tolist()))
    assert answer_natively(message) == answer_in_python(message)


@st.composite
def output_tensors(draw: st.DrawFn) -> wire.Tensor:
    datatype, shape = draw(st.sampled_from([*ITEM_BYTES, "BYTES"])), draw(st.lists(st.integers(0, 3), max_size=4))
    count = int(np.prod(shape))
    if datatype == "BYTES":
        texts = st.text(max_size=6).map(str.encode) | st.binary(max_size=3)
        data = pack_bytes(draw(st.lists(texts, min_size=count, max_size=count)))
    else:
        data = draw(st.binary(min_size=count * ITEM_BYTES[datatype], max_size=count * ITEM_BYTES[datatype]))
    return wire.Tensor(name=draw(st.text(max_size=2)), datatype=datatype, shape=shape, data=data)


@settings(max_examples=300)
@given(st.lists(output_tensors(), min_size=1, max_size=3), LABELS)
def test_tensors_are_told_as_python_tells_them(tensors: list[wire.Tensor], labels: list[str] | None) -> None:
    message = wire.encode(wire.Outputs(request_id="n1", tensors=tensors, labels=labels))
    try:
        expected = answer_in_python(message)
    except HeadwayError:
        assert answer_natively(message) is None
    else:
        is_twice = len({tensor.name for tensor in tensors}) < len(tensors)
        assert answer_natively(message) == (None if is_twice else expected)


@pytest.mark.parametrize(
    "value",
    [
        b"\xc7\x01\x05a",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\x81\x01\x02",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\xa1\xff",
        b"\xc1",
        b"\x92\x01",
    ],
)
def test_a_value_without_words_in_json_is_left_to_python(value: bytes) -> None:
    message = b"\x83\xa4type\xa7outputs\xaarequest_id\xa2n1\xa5value" + value
    assert answer_natively(message) is None


def test_a_shape_of_a_great_many_empty_lists_is_left_to_python() -> None:
    tensor = wire.Tensor(name="y", datatype="FP32", shape=[5000, 0], data=b"")
    assert answer_natively(wire.encode(wire.Outputs(request_id="n1", tensors=[tensor]))) is None


def test_a_deep_value_is_left_to_python() -> None:
    value: Any = 1
    for _ in range(60):
        value = [value]
    assert answer_natively(wire.encode(wire.Outputs(request_id="n1", value=value))) is not None
    assert answer_natively(wire.encode(wire.Outputs(request_id="n1", value=[value]))) is None
