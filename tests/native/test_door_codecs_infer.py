"""What the native way makes of an inference's body and of its answer, against what the Python way makes of the same."""

import json
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import headway_wire as wire
from headway._native import DoorCodecs, OutputsWish, PlainSignature
from headway.core.infer import Inferred
from headway.errors import HeadwayError
from headway.server.oip.answers import infer_response
from headway.server.oip.convert import read_infer
from headway.server.oip.plane import Answered, Asked, choose_outputs
from headway.server.oip.targets import Target
from headway.worker.infer_check import check_infer
from headway_wire.tensors import ITEM_BYTES, pack_bytes

TARGET = Target("model", "1", "model", cast(Any, SimpleNamespace(id="model")))
HAS_PLUS = orjson.dumps(1e16) == b"1e+16"


def native_signature(signature: wire.Signature) -> PlainSignature:
    inputs = [(spec.name, spec.datatype, spec.shape, spec.is_optional) for spec in signature.inputs]
    return PlainSignature(inputs, [spec.name for spec in signature.outputs], signature.takes_values)


def ask_natively(
    signature: wire.Signature, body: bytes, json_length: int | None = None
) -> tuple[tuple[bytes, int], OutputsWish] | None:
    """The message and its inputs' bytes, and the wish; None: left to Python."""
    return DoorCodecs.read_infer(native_signature(signature), body, json_length, "7")


def ask_in_python(
    signature: wire.Signature, body: bytes, json_length: int | None = None
) -> tuple[tuple[bytes, int], Asked]:
    """The same. Raises HeadwayError."""
    asked = read_infer(body, None if json_length is None else str(json_length), TARGET)
    request = asked.request()
    message = wire.Infer(request_id="7", tensors=list(request.tensors), outputs=list(request.outputs))
    check_infer(signature, message)
    return (wire.encode(message), sum(len(tensor.data) for tensor in request.tensors)), asked


def check_same(signature: wire.Signature, body: bytes, json_length: int | None = None) -> bool:
    """Whether the native way took it; then as the Python way does."""
    made = ask_natively(signature, body, json_length)
    if made is None:
        return False
    message, wish = made
    expected, asked = ask_in_python(signature, body, json_length)
    assert message == expected
    assert wish.id == asked.id
    assert wish.is_binary == asked.parameters.is_binary
    assert wish.outputs == [(output.name, output.is_binary) for output in asked.wanted]
    assert not any(output.num_classes for output in asked.wanted)
    assert not asked.parameters.for_model
    assert asked.parameters.timeout_s is None
    return True


def signature_of(*inputs: tuple[str, str, list[int]], outputs: Sequence[str] = ()) -> wire.Signature:
    specs = [wire.TensorSpec(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs]
    told = [wire.TensorSpec(name=name, datatype="FP32", shape=[-1]) for name in outputs]
    return wire.Signature(task="tensor", platform="test", inputs=specs, outputs=told)


JSON_DATATYPES = [datatype for datatype in (*ITEM_BYTES, "BYTES") if datatype != "BF16"]
NAMES = st.text("aé€😀_-. ", min_size=1, max_size=4)
SHAPES = st.lists(st.integers(0, 3), max_size=3)
FLOATS = {"FP16": 16, "FP32": 32, "FP64": 64}


def elements_of(datatype: str) -> st.SearchStrategy[Any]:
    """As JSON tells them."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(max_size=6)
    if datatype in FLOATS:
        width = cast(Any, FLOATS[datatype])
        return st.floats(width=width, allow_nan=False, allow_infinity=False) | st.integers(-2048, 2048)
    bits = 8 * ITEM_BYTES[datatype]
    least = 0 if datatype.startswith("U") else -(2 ** (bits - 1))
    return st.integers(least, least + 2**bits - 1)


def nested(flat: list[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return flat
    step = int(np.prod(shape[1:]))
    return [nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@st.composite
def plain_requests(draw: st.DrawFn) -> tuple[wire.Signature, bytes, int | None]:
    """A signature, and a body that fits it."""
    tensors, specs, blobs = [], [], []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        datatype, shape = draw(st.sampled_from(JSON_DATATYPES)), draw(SHAPES)
        count = int(np.prod(shape))
        flat = draw(st.lists(elements_of(datatype), min_size=count, max_size=count))
        told: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if draw(st.booleans()):
            blob = pack_bytes([text.encode() for text in flat]) if datatype == "BYTES" else b""
            if datatype == "BOOL":
                blob = bytes(flat)
            elif datatype != "BYTES":
                blob = draw(st.binary(min_size=count * ITEM_BYTES[datatype], max_size=count * ITEM_BYTES[datatype]))
            blobs.append(blob)
            told["parameters"] = {"binary_data_size": len(blob)}
        else:
            told["data"] = nested(flat, shape) if draw(st.booleans()) else flat
        specs.append((name, datatype, [draw(st.sampled_from([-1, size])) for size in shape]))
        tensors.append({key: told[key] for key in draw(st.permutations(sorted(told)))})
    body: dict[str, Any] = {"inputs": draw(st.permutations(tensors)) if not blobs else tensors}
    if draw(st.booleans()):
        body["id"] = draw(st.text(max_size=5))
    if draw(st.booleans()):
        body["parameters"] = draw(st.sampled_from([{}, {"binary_data_output": True}, {"binary_data_output": False}]))
    known = draw(st.lists(NAMES, max_size=3, unique=True))
    if draw(st.booleans()):
        wishes = st.sampled_from([{}, {"binary_data": True}, {"binary_data": False}])
        wanted = draw(st.lists(st.sampled_from(known) if known else NAMES, max_size=3, unique=True))
        body["outputs"] = [
            {"name": name} | ({"parameters": draw(wishes)} if draw(st.booleans()) else {}) for name in wanted
        ]
    body = {key: body[key] for key in draw(st.permutations(sorted(body)))}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r ")]))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()), separators=separators)
    head = text.encode()
    return signature_of(*specs, outputs=known), head + b"".join(blobs), len(head) if blobs else None


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text that is drawn makes a table of all characters
@given(plain_requests())
def test_a_plain_body_becomes_the_message_that_python_makes_of_it(request: Any) -> None:
    signature, body, json_length = request
    assert ("\\u" in body.decode("latin-1") and not check_same(*request)) or check_same(signature, body, json_length)


PIECES = [
    b"", b",", b"[", b"]", b"{", b"}", b'"', b"\\", b"null", b"true", b"1", b"-", b"-0", b".5", b"e5", b"E+2", b" ",
    b"0", b'"id":"x",', b'"data":[1],', b'"parameters":{},', b'"timeout":5', b"\xff", b"\xed\xa0\x80", b"\x00",
    b"1e400", b"00", b'"shape":[1],', b'{"name":"a"},', b"99999999999999999999", b"\\ud800", b"\\u0041", b"-1",
    b"[]",
    b"classification",
]  # fmt: skip


@settings(max_examples=300)
@given(plain_requests(), st.data())
def test_a_spoilt_body_is_left_to_python_or_means_the_same_there(request: Any, data: Any) -> None:
    signature, body, json_length = request
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        body = body[:place] + data.draw(st.sampled_from(PIECES)) + body[place + data.draw(st.integers(0, 3)) :]
    if json_length is not None:
        json_length += data.draw(st.integers(-2, 2))
    check_same(signature, body, json_length)


NUMBERS = [
    "0", "-0", "0.0", "-0.0", "1", "-1", "1.5", "1e5", "1E-5", "1e+5", "255", "256", "-128", "-129", "65535",
    "65536", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1e19",
    "340282346638528859811704183484516925440", "3.4028235677973366e38", "3.4028235677973362e38", "1e39", "65504",
    "65519.99999999999", "65520", "2.98e-8", "1e-400", "1e-320", "4.9e-324", "2.4703282292062327e-324",
    "1.7976931348623157e308", "1.7976931348623159e308", "1e400", "true", "9007199254740993", "9007199254740993.0",
    "0.1", "0.30000000000000004", "123456789012345678901234567890e-20",
    "1.00000005960464477539062500000000000000000000000000000000000000000001", "16777217", "33554435", "01", "1.",
    "-", "+1", "1e", "1e+", "0x1", "NaN", "Infinity", "- 1", "1_0", "\"1\"", "null", "[1]", "1e99999999999999999999",
    "0e9999999999",
]  # fmt: skip


@pytest.mark.parametrize("datatype", [*ITEM_BYTES, "BYTES"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_read_as_python_reads_it(datatype: str, number: str) -> None:
    body = f'{{"inputs":[{{"name":"x","shape":[1],"datatype":"{datatype}","data":[{number}]}}]}}'.encode()
    signature = signature_of(("x", datatype, [-1]))
    try:
        ask_in_python(signature, body)
    except HeadwayError:
        assert not check_same(signature, body)
    else:
        is_left = number == "1e-400" or "e99999" in number or "2.47" in number
        assert check_same(signature, body) or is_left


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300))
def test_any_doubles_digits_are_read_back_exactly(bits: list[int]) -> None:
    values = np.array(bits, np.uint64).view(np.float64)
    values = values[np.isfinite(values)]
    texts = [text for value in values.tolist() for text in (repr(value), f"{value:.17g}", f"{value:.25e}")]
    body = f'{{"inputs":[{{"name":"x","shape":[{len(texts)}],"datatype":"FP64","data":[{",".join(texts)}]}}]}}'.encode()
    assert check_same(signature_of(("x", "FP64", [-1])), body)


def test_numbers_as_people_write_them_are_read_exactly() -> None:
    random = np.random.default_rng(3)
    values = random.uniform(-1, 1, 20_000) * 10.0 ** random.integers(-12, 12, 20_000)
    texts = [repr(value) for value in values.tolist()] + [f"{value:.19g}" for value in values.tolist()]
    # Just between two doubles, and one digit beside it.
    halves = random.integers(2**52, 2**53, 5_000).astype(object) * 2 + 1
    texts += [f"{half + step}e{exponent}" for half in halves for step in (-1, 0, 1) for exponent in (0, -1, 1, -27, 27)]
    texts += [f"{half * 5**8 + step}e-8" for half in halves for step in (-1, 0, 1) if half * 5**8 < 10**19 * 3]
    body = f'{{"inputs":[{{"name":"x","shape":[{len(texts)}],"datatype":"FP64","data":[{",".join(texts)}]}}]}}'.encode()
    assert check_same(signature_of(("x", "FP64", [-1])), body)


def wire_outputs(*tensors: wire.Tensor, **fields: Any) -> bytes:
    return wire.encode(wire.Outputs(request_id="n1", tensors=list(tensors), **fields))


def answer_natively(body: bytes, outputs: bytes) -> tuple[bytes, int | None] | None:
    """Of a request with this body to a model without inputs of interest."""
    made = ask_natively(ANY, body)
    assert made is not None
    return DoorCodecs.infer_answer("mödel", "3", made[1], outputs, HAS_PLUS)


def answer_in_python(body: bytes, outputs: bytes) -> tuple[bytes, int | None]:
    """Raises HeadwayError, ValueError."""
    target = Target("mödel", "3", "model", cast(Any, SimpleNamespace(id="model")))
    asked = read_infer(body, None, target)
    message = cast(wire.Outputs, wire.decode_up(outputs))
    made = Inferred(model="model", version="3", tensors=message.tensors, value=message.value, labels=message.labels)
    response = infer_response(asked, Answered(made, choose_outputs(made, asked, made.labels)))
    length = response.headers.get("inference-header-content-length")
    is_binary = response.headers["content-type"] == "application/octet-stream"
    assert is_binary == (length is not None)
    return bytes(response.body), None if length is None else int(length)


ANY = signature_of(("x", "BOOL", []))


def body_with(**fields: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": "BOOL", "shape": [], "data": [True]}], **fields}).encode()


def tensor_of(datatype: str, shape: list[int], data: bytes, name: str = "y") -> wire.Tensor:
    return wire.Tensor(name=name, datatype=datatype, shape=shape, data=data)


def check_same_answer(body: bytes, outputs: bytes) -> bool:
    """Whether the native way made one; then the Python way's."""
    made = answer_natively(body, outputs)
    if made is None:
        return False
    assert made == answer_in_python(body, outputs)
    return True


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_floats_digits_are_those_of_orjson(dtype: Any) -> None:
    values = np.frombuffer(np.random.default_rng(1).bytes(1_000_000), dtype)
    values = values[np.isfinite(values)]
    datatype = f"FP{8 * values.itemsize}"
    assert check_same_answer(body_with(), wire_outputs(tensor_of(datatype, [len(values)], values.tobytes())))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_at_the_edges_are_written_as_orjson_does(dtype: Any) -> None:
    edges = [0.0, 1.0, *(10.0**power for power in range(-30, 30)), *(1.5 * 10.0**power for power in range(-30, 30))]
    edges += [123456.0, 1234567.8, 2.0**24, 2.0**53, 2.0**63, float(np.finfo(dtype).max), float(np.finfo(dtype).tiny)]
    with np.errstate(over="ignore"):
        values = np.array(edges).astype(dtype)
    values = values[np.isfinite(values)]
    values = np.concatenate([values, -values, np.nextafter(values, dtype(0)), np.array([5e-324, 1e-45]).astype(dtype)])
    datatype = f"FP{8 * values.itemsize}"
    assert check_same_answer(body_with(), wire_outputs(tensor_of(datatype, [len(values)], values.tobytes())))


def test_every_half_is_written_as_orjson_does() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    assert check_same_answer(body_with(), wire_outputs(tensor_of("FP16", [len(values)], values.tobytes())))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_not_finite_is_left_to_python(value: float, dtype: Any) -> None:
    array = np.array([1.0, value], dtype)
    outputs = wire_outputs(tensor_of(f"FP{8 * array.itemsize}", [2], array.tobytes()))
    assert not check_same_answer(body_with(), outputs)
    assert check_same_answer(body_with(parameters={"binary_data_output": True}), outputs)


@st.composite
def output_tensors(draw: st.DrawFn) -> wire.Tensor:
    datatype, shape = draw(st.sampled_from([*ITEM_BYTES, "BYTES"])), draw(SHAPES)
    count = int(np.prod(shape))
    if datatype == "BYTES":
        texts = st.text(max_size=6).map(str.encode) | st.binary(max_size=3)
        data = pack_bytes(draw(st.lists(texts, min_size=count, max_size=count)))
    else:
        data = draw(st.binary(min_size=count * ITEM_BYTES[datatype], max_size=count * ITEM_BYTES[datatype]))
    return tensor_of(datatype, shape, data, draw(NAMES))


@settings(max_examples=300)
@given(st.lists(output_tensors(), max_size=3), st.data())
def test_an_answer_is_that_of_python_or_left_to_it(tensors: list[wire.Tensor], data: Any) -> None:
    fields: dict[str, Any] = {}
    if data.draw(st.booleans()):
        fields["id"] = data.draw(st.text(max_size=4))
    if data.draw(st.booleans()):
        fields["parameters"] = {"binary_data_output": data.draw(st.booleans())}
    if data.draw(st.booleans()) and tensors:
        names = data.draw(st.lists(st.sampled_from([tensor.name for tensor in tensors]), max_size=3, unique=True))
        forms = [
            {"parameters": {"binary_data": data.draw(st.booleans())}} if data.draw(st.booleans()) else {} for _ in names
        ]
        fields["outputs"] = [{"name": name, **form} for name, form in zip(names, forms, strict=True)]
    outputs = wire_outputs(*tensors, labels=data.draw(st.none() | st.lists(st.text(max_size=3), max_size=2)))
    try:
        expected = answer_in_python(body_with(**fields), outputs)
    except (HeadwayError, UnicodeDecodeError):
        assert not check_same_answer(body_with(**fields), outputs)
    else:
        assert answer_natively(body_with(**fields), outputs) == expected


def test_every_character_is_written_as_orjson_does() -> None:
    texts = [chr(code).encode() for code in range(0x11000) if not 0xD800 <= code < 0xE000]
    assert check_same_answer(body_with(), wire_outputs(tensor_of("BYTES", [len(texts)], pack_bytes(texts))))


@pytest.mark.parametrize(
    "outputs",
    [
        wire_outputs(error=wire.Error(kind="InferenceFailed", message="no")),
        wire_outputs(tensor_of("FP32", [2], b"1234")),
        wire_outputs(tensor_of("FP32", [-1], b"1234")),
        wire_outputs(tensor_of("FP31", [1], b"1234")),
        wire_outputs(tensor_of("BYTES", [1], struct.pack("<I", 9) + b"short")),
        wire_outputs(tensor_of("FP32", [2**40, 2**40, 0], b"")),
        wire_outputs() + b"\x00",
        wire.encode(wire.Stats(values={"a": 1.0})),
        msgspec.msgpack.encode({"type": "outputs"}),
        msgspec.msgpack.encode({"type": "outputs", "request_id": "n1", "more": 1}),
        b"\x82\xa4type\xa7outputs\xaarequest_id\xa1\xff",
        b"",
    ],
)
def test_what_is_no_plain_answer_is_left_to_python(outputs: bytes) -> None:
    assert answer_natively(body_with(), outputs) is None


@given(st.binary(max_size=40), st.lists(output_tensors(), max_size=2))
@example(b"", [])
def test_a_spoilt_answer_is_left_to_python_or_is_the_same_there(spoil: bytes, tensors: list[wire.Tensor]) -> None:
    whole = wire_outputs(*tensors)
    for place in range(0, len(whole), 3):
        spoilt = whole[:place] + spoil[:1] + whole[place + len(spoil) % 3 :]
        if answer_natively(body_with(), spoilt) is not None:
            assert check_same_answer(body_with(), spoilt)
