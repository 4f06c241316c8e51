"""Tensors of every datatype through JSON, binary data and gRPC, byte for byte, compared with numpy."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.server.oip.conftest import CARD, KINDS

import headway_wire as wire
from headway.core.infer import Inferred
from headway.server.oip.answers import infer_response
from headway.server.oip.convert import read_infer
from headway.server.oip.parameters import RequestParameters
from headway.server.oip.plane import Answered, Asked
from headway.server.oip.rpc.convert import make_response
from headway.server.oip.rpc.convert import read_infer as read_message
from headway.server.oip.rpc.messages import message
from headway.server.oip.targets import Target

TYPES: dict[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip
TARGET = Target("identity", "1", "identity", CARD)
InferRequest = message("ModelInferRequest")


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)


def arrays(kind: str, *, is_json: bool) -> st.SearchStrategy[np.ndarray]:
    if kind == "BYTES":
        element = st.text(max_size=9).map(str.encode) if is_json else st.binary(max_size=9)
        return hnp.arrays(np.object_, shapes(), elements=element, fill=st.nothing())
    if kind == "BF16":
        return hnp.arrays(np.uint16, shapes()).map(lambda bits: bits.view(ml_dtypes.bfloat16))
    dtype = np.dtype(TYPES[kind])
    if is_json and dtype.kind == "f":
        elements = st.floats(width=dtype.itemsize * 8, allow_nan=False, allow_infinity=False)  # type: ignore[call-overload]
        return hnp.arrays(dtype, shapes(), elements=elements)
    return hnp.arrays(dtype, shapes())


def raw_of(array: np.ndarray) -> bytes:
    """The protocol's layout, by numpy alone."""
    if array.dtype == object:
        return b"".join(len(each).to_bytes(4, "little") + each for each in array.reshape(-1).tolist())
    return array.tobytes()


def echo(asked: Asked, *, is_binary: bool) -> Any:
    """The answer of a model that gives back what it got."""
    made = Inferred(model="identity", version="", tensors=asked.tensors)
    return infer_response(asked, Answered(made, [(tensor, is_binary) for tensor in asked.tensors]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "BF16"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_json(kind: str, data: st.DataObject) -> None:
    array = data.draw(arrays(kind, is_json=True))
    plain = array.reshape(-1).tolist()
    elements = [each.decode() for each in plain] if kind == "BYTES" else plain
    nested = np.array(elements, object).reshape(array.shape).tolist() if array.size else elements
    for form in (elements, nested):
        tensor = {"name": "x", "datatype": kind, "shape": list(array.shape), "data": form}
        asked = read_infer(json.dumps({"inputs": [tensor]}).encode(), None, TARGET)
        assert bytes(asked.tensors[0].data) == raw_of(array)
    (told,) = json.loads(echo(asked, is_binary=False).body)["outputs"]
    assert told == {"name": "x", "datatype": kind, "shape": list(array.shape), "data": told["data"]}
    if kind == "BYTES":
        assert told["data"] == elements
    else:
        assert np.array(told["data"], TYPES[kind]).tobytes() == raw_of(array)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_binary_data(kind: str, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(arrays(kind, is_json=False), min_size=1, max_size=3))
    tensors = [
        {
            "name": f"x{i}",
            "datatype": kind,
            "shape": list(array.shape),
            "parameters": {"binary_data_size": len(raw_of(array))},
        }
        for i, array in enumerate(drawn)
    ]
    head = json.dumps({"inputs": tensors}).encode()
    blobs = b"".join(map(raw_of, drawn))
    asked = read_infer(head + blobs, str(len(head)), TARGET)
    assert [bytes(tensor.data) for tensor in asked.tensors] == list(map(raw_of, drawn))
    response = echo(asked, is_binary=True)
    length = int(response.headers["inference-header-content-length"])
    assert response.body[length:] == blobs
    assert json.loads(response.body[:length])["outputs"] == tensors


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_grpc(kind: str, data: st.DataObject) -> None:
    array = data.draw(arrays(kind, is_json=False))
    raw = raw_of(array)
    tensor = {"name": "x", "datatype": kind, "shape": array.shape}
    sent = InferRequest(model_name="identity", inputs=[tensor], raw_input_contents=[raw]).SerializeToString()
    asked = read_message(InferRequest.FromString(sent), TARGET)
    assert asked == Asked(
        target=TARGET,
        id="",
        tensors=[wire.Tensor(name="x", datatype=kind, shape=list(array.shape), data=raw)],
        wanted=[],
        parameters=RequestParameters(),
    )
    told = make_response(asked, asked.tensors)
    assert list(told.raw_output_contents) == [raw]
    assert (told.outputs[0].datatype, tuple(told.outputs[0].shape)) == (kind, array.shape)
