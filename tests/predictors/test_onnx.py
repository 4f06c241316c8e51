"""Any ONNX model: models of a few nodes, whose answers are arithmetic."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import headway_wire as wire
from headway.predictors.onnx import OnnxPredictor
from headway_wire.tensors import from_array, to_array

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}

Value = tuple[str, int, list[Any]]


def save(path: Path, nodes: list[onnx.NodeProto], inputs: list[Value], outputs: list[Value], **fields: Any) -> Path:
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        **fields,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


def add_model(folder: Path, first: Any = "batch") -> Path:
    """y = 2 a + b, over a free first axis."""
    nodes = [helper.make_node("Add", ["a", "a"], ["two"]), helper.make_node("Add", ["two", "b"], ["y"])]
    shape = [first, 2]
    inputs = [("a", TensorProto.FLOAT, shape), ("b", TensorProto.FLOAT, shape)]
    return save(folder / "model.onnx", nodes, inputs, [("y", TensorProto.FLOAT, shape)])


def load(path: Path, **options: Any) -> tuple[OnnxPredictor, wire.Signature]:
    predictor = OnnxPredictor()
    return predictor, predictor.load(str(path), {"type": "tensor", "threads": 1, **options}, lambda loading: None)


def request(request_id: str = "1", **arrays: Any) -> wire.Infer:
    return wire.Infer(request_id=request_id, tensors=[from_array(name, it) for name, it in arrays.items()])


def test_names_datatypes_and_shapes_are_the_model_s_own(tmp_path: Path) -> None:
    _, signature = load(add_model(tmp_path))
    spec = {"datatype": "FP32", "shape": [-1, 2]}
    assert signature.inputs == [wire.TensorSpec(name="a", **spec), wire.TensorSpec(name="b", **spec)]  # type: ignore[arg-type]
    assert signature.outputs == [wire.TensorSpec(name="y", **spec)]  # type: ignore[arg-type]
    assert (signature.task, signature.platform, signature.can_batch) == ("tensor", "onnxruntime_onnx", True)
    assert signature.facts == {"providers": ["CPUExecutionProvider"], "threads": 1, "is_warm": True}


def test_requests_are_computed_together_and_get_their_own_rows(tmp_path: Path) -> None:
    predictor, _ = load(add_model(tmp_path))
    rng = np.random.default_rng(1)
    arrays = [[rng.normal(size=(rows, 2)).astype(np.float32) for _ in "ab"] for rows in (1, 3, 2)]
    answers = predictor.infer([request(str(index), a=a, b=b) for index, (a, b) in enumerate(arrays)])
    assert [answer.request_id for answer in answers] == ["0", "1", "2"]
    for answer, (a, b) in zip(answers, arrays, strict=True):
        np.testing.assert_array_equal(to_array(answer.tensors[0]), a + a + b)


@pytest.mark.parametrize("datatype", TYPES)
def test_each_datatype_goes_through(tmp_path: Path, datatype: str) -> None:
    kind = TYPES[datatype]
    path = save(
        tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], [("x", kind, ["n"])], [("y", kind, ["n"])]
    )
    predictor, signature = load(path)
    assert [spec.datatype for spec in (*signature.inputs, *signature.outputs)] == [datatype, datatype]
    if datatype == "BYTES":
        array = np.array(["a", "", "ü"], dtype=object)
    else:
        array = np.array([0, 1, 3], dtype=helper.tensor_dtype_to_np_dtype(kind))
    (answer,) = predictor.infer([request(x=array)])
    assert answer.error is None
    assert answer.tensors == [from_array("y", array)]


def test_a_fixed_first_axis_is_no_batch_s_and_a_scalar_has_no_shape(tmp_path: Path) -> None:
    _, fixed = load(add_model(tmp_path, first=1))
    assert (fixed.can_batch, fixed.inputs[0].shape) == (False, [1, 2])
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"])]
    inputs: list[Value] = [("x", TensorProto.FLOAT, [None]), ("factor", TensorProto.FLOAT, [])]
    predictor, scaled = load(save(tmp_path / "s.onnx", nodes, inputs, [("y", TensorProto.FLOAT, [None])]))
    assert ([spec.shape for spec in scaled.inputs], scaled.can_batch) == ([[-1], []], False)
    (answer,) = predictor.infer([request(x=np.array([1, 2], np.float32), factor=np.array(3, np.float32))])
    np.testing.assert_array_equal(to_array(answer.tensors[0]), [3, 6])


def test_an_output_that_does_not_follow_the_batch_is_computed_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
    path = save(tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, ["n"])], [("y", TensorProto.FLOAT, [])])
    assert load(path)[1].can_batch is False


def test_an_output_of_items_by_items_is_computed_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    path = save(
        tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, ["n", 2])], [("y", TensorProto.FLOAT, ["n", "n"])]
    )
    assert load(path)[1].can_batch is False


def test_lists_of_numbers_are_the_one_input_and_logits_become_probabilities(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    value = [(name, TensorProto.FLOAT, ["n", 2]) for name in "xy"]
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    path = save(tmp_path / "model.onnx", nodes, value[:1], value[1:])
    predictor, signature = load(tmp_path, type="tensor", scores="softmax", labels="labels.txt")
    assert signature.labels == ["cat", "dog"]
    answers = predictor.infer(
        [wire.Infer(request_id="1", value=[[0.0, 1.0]]), wire.Infer(request_id="2", value=[3, 3])]
    )
    e = np.exp(1.0)
    np.testing.assert_allclose(answers[0].value, [[e / (1 + e), 1 / (1 + e)]], rtol=1e-6)
    assert answers[1].value == [[0.5, 0.5]]
    assert answers[1].labels == ["cat", "dog"]
    assert path.is_file()


def test_probabilities_of_maps_are_an_array_and_their_keys_labels(tmp_path: Path) -> None:
    nodes = [helper.make_node("ZipMap", ["x"], ["p"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [
            helper.make_value_info(
                "p",
                helper.make_sequence_type_proto(
                    helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
                ),
            )
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "model.onnx"))
    predictor, signature = load(tmp_path)
    assert (signature.labels, signature.outputs[0].shape, signature.can_batch) == (["no", "yes"], [-1, -1], True)
    answers = predictor.infer([wire.Infer(request_id=str(it), value=[[it, it + 0.5]]) for it in (1, 2)])
    assert [answer.value for answer in answers] == [[[1.0, 1.5]], [[2.0, 2.5]]]


def strings_model(folder: Path, locale: str | None) -> Path:
    attributes = {} if locale is None else {"locale": locale}
    nodes = [helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", **attributes)]
    value = [(name, TensorProto.STRING, ["n"]) for name in "xy"]
    return save(folder / "model.onnx", nodes, value[:1], value[1:])


@pytest.mark.parametrize("locale", [None, "en_US.UTF-8", "C.UTF-8"])
def test_strings_are_normalised_in_a_locale_that_every_machine_has(tmp_path: Path, locale: str | None) -> None:
    predictor, signature = load(strings_model(tmp_path, locale))
    assert signature.inputs == [wire.TensorSpec(name="x", datatype="BYTES", shape=[-1])]
    one, many = predictor.infer([wire.Infer(request_id="1", value="abc"), wire.Infer(request_id="2", value=["d", "e"])])
    assert (one.value, many.value) == (["ABC"], ["D", "E"])
    (answer,) = predictor.infer([wire.Infer(request_id="3", value=[1])])
    assert answer.error is not None
    assert answer.error.kind == "InvalidRequest"


def test_what_the_model_refuses_is_the_caller_s_fault(tmp_path: Path) -> None:
    predictor, _ = load(add_model(tmp_path))
    wrong = request(a=np.zeros((2, 2), np.float32), b=np.zeros((2, 3), np.float32))
    with pytest.raises(wire.PredictorError, match="the model refused the inputs") as caught:
        predictor.infer([wrong])
    assert caught.value.error.kind == "InvalidRequest"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"providers": ["TPUExecutionProvider"]}, "'TPUExecutionProvider' is not in this ONNX Runtime; it has"),
        ({"threads": 0}, "threads is 0"),
        ({"optimization": "most"}, "do not fit"),
        ({"file": "other.onnx"}, "has no single ONNX file"),
        ({"labels": ["one"]}, "1 labels, and the model has 2 classes"),
        ({"output": "z"}, "output is 'z'; the model has y"),
        ({"spin": True}, "there is no option 'spin'"),
    ],
)
def test_options_that_can_not_be_used_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    add_model(tmp_path)
    with pytest.raises(wire.PredictorError, match=words):
        load(tmp_path, **options)


def test_a_file_that_is_none_and_a_folder_with_two(tmp_path: Path) -> None:
    with pytest.raises(wire.PredictorError, match="there is no file or folder"):
        load(tmp_path / "nothing")
    (tmp_path / "a.onnx").write_bytes(b"\x00not protobuf")
    with pytest.raises(wire.PredictorError, match="can not load") as caught:
        load(tmp_path)
    assert caught.value.error.kind == "UnsupportedModel"
    (tmp_path / "b.onnx").write_bytes(b"")
    with pytest.raises(wire.PredictorError, match=r"a\.onnx, b\.onnx"):
        load(tmp_path)


def test_optimisation_and_session_entries_reach_onnx_runtime(tmp_path: Path) -> None:
    for level in ("all", "extended", "basic", "none"):
        predictor, _ = load(add_model(tmp_path), optimization=level)
        predictor.close()
    with pytest.raises(wire.PredictorError, match="can not load"):
        load(add_model(tmp_path), session={"session.load_model_format": "ORT"})


@pytest.mark.parametrize(("told", "spins"), [({}, "1"), ({"session": {"session.intra_op.allow_spinning": "0"}}, "0")])
def test_threads_spin_within_a_run_alone_unless_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], spins: str
) -> None:
    made, make = [], onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda path, settings, **more: made.append(settings) or make(path, settings)
    )
    load(add_model(tmp_path), **told)
    entries = ("session.intra_op.allow_spinning", "session.force_spinning_stop")
    assert [made[0].get_session_config_entry(name) for name in entries] == [spins, "1"]
