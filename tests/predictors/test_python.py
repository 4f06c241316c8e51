"""A user's own class as a model."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway_wire as wire
from headway.predictors.python import PythonPredictor, plain
from headway_wire.tensors import from_array, to_array


@pytest.fixture(autouse=True)
def _own_path_and_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(folder: Path, code: str, **options: Any) -> tuple[PythonPredictor, wire.Signature]:
    (folder / "model.py").write_text(code)
    predictor = PythonPredictor()
    return predictor, predictor.load(str(folder), {"type": "python", **options}, lambda loading: None)


def ask(predictor: PythonPredictor, *values: Any, **parameters: Any) -> list[Any]:
    requests = [wire.Infer(request_id=str(it), value=value, parameters=parameters) for it, value in enumerate(values)]
    sent = [wire.decode_up(wire.encode(answer)) for answer in predictor.infer(requests)]
    return [answer.value for answer in sent if isinstance(answer, wire.Outputs)]


def test_load_gets_the_options_that_are_its_own_and_predict_the_value(tmp_path: Path) -> None:
    code = """
import tables
class Model:
    def load(self, options):
        self.options = options
    def predict(self, value):
        return tables.NAMES[value], self.options
"""
    (tmp_path / "tables.py").write_text("NAMES = {1: 'one'}")
    predictor, signature = load(tmp_path, code, threads=2, factor=3)
    assert ask(predictor, 1) == [["one", {"factor": 3}]]
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert signature == wire.Signature(task="python", platform="python")


def test_a_batch_is_one_call_and_parameters_come_where_they_are_taken(tmp_path: Path) -> None:
    code = """
class Model:
    labels = ["a", "b"]
    def predict_batch(self, values, parameters):
        return [(value, len(values), parameters) for value in values]
"""
    predictor, signature = load(tmp_path, code)
    assert (signature.can_batch, signature.labels) == (True, ["a", "b"])
    assert ask(predictor, 1, 2, k=3) == [[1, 2, {"k": 3}], [2, 2, {"k": 3}]]
    assert ask(predictor, 1) == [[1, 1, {}]]


def test_arrays_by_name_joined_where_the_class_says_so(tmp_path: Path) -> None:
    code = """
class Model:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1]), "rows": ("INT64", [-1])}
    can_batch = True
    def predict_tensors(self, arrays):
        import numpy
        x = arrays["x"]
        return {"y": x.sum(axis=1), "rows": numpy.full(len(x), len(x))}
"""
    predictor, signature = load(tmp_path, code)
    assert signature.inputs == [wire.TensorSpec(name="x", datatype="FP32", shape=[-1, 2])]
    assert not signature.takes_values
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    requests = [
        wire.Infer(request_id=str(it), tensors=[from_array("x", part)], outputs=["rows", "y"][:it])
        for it, part in ((1, x[:1]), (2, x[1:]))
    ]
    one, two = predictor.infer(requests)
    assert [tensor.name for tensor in one.tensors] == ["rows"]
    assert to_array(one.tensors[0]).tolist() == [3], "both were one call"
    assert {tensor.name: to_array(tensor).tolist() for tensor in two.tensors} == {"y": [5, 9], "rows": [3, 3]}


def test_a_value_error_is_the_caller_s_and_anything_else_is_raised_as_it_is(tmp_path: Path) -> None:
    code = """
class Model:
    def predict(self, value):
        raise {"v": ValueError, "k": KeyError}[value]("no such city")
"""
    predictor, _ = load(tmp_path, code)
    with pytest.raises(wire.PredictorError, match="ValueError: no such city") as caught:
        ask(predictor, "v")
    assert caught.value.error.kind == "InvalidRequest"
    with pytest.raises(KeyError, match="no such city"):
        ask(predictor, "k")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("np.array([1j])", "y has the type complex128"),  # the protocol has no such type
        ("np.array(['\\ud800'])", "surrogates not allowed"),  # nor a text of it
    ],
)
def test_an_answer_that_no_tensor_holds_is_not_the_caller_s_fault(tmp_path: Path, answer: str, words: str) -> None:
    code = f"""
import numpy as np
class Model:
    inputs = {{"x": ("FP32", [-1])}}
    def predict_tensors(self, arrays):
        return {{"y": {answer}}}
"""
    predictor, _ = load(tmp_path, code)
    request = wire.Infer(request_id="1", tensors=[from_array("x", np.zeros(1, np.float32))])
    with pytest.raises(ValueError, match=words) as caught:
        predictor.infer([request])
    assert not isinstance(caught.value, wire.PredictorError)


def test_a_batch_with_too_few_answers_is_an_error(tmp_path: Path) -> None:
    predictor, _ = load(tmp_path, "class Model:\n    def predict_batch(self, values):\n        return values[1:]")
    with pytest.raises(wire.PredictorError, match="1 answers to 2 values"):
        ask(predictor, 1, 2)


@pytest.mark.parametrize(
    ("code", "options", "words"),
    [
        ("x = 1", {}, "no class with a predict method"),
        (
            "class A:\n def predict(s, v): ...\nclass B:\n def predict(s, v): ...",
            {},
            r"2 classes with predict \(A, B\)",
        ),
        ("class A:\n def predict(s, v): ...", {"class": "C"}, "no class 'C'; it has: A"),
        ("class A:\n def predict_tensors(s, v): ...", {}, "has predict_tensors and no `inputs`"),
        ("class A:\n inputs = {'x': 'FP32'}\n def predict_tensors(s, v): ...", {}, "is no {name: "),
        ("class A:\n def predict(s, v): ...", {"threads": 0}, "threads is 0"),
        ("class A:\n def predict(s, v): ...", {"threads": "many"}, "options do not fit"),
        ("class A:\n def predict(s, v): ...", {"file": "other.py"}, "there is no Python file"),
    ],
)
def test_what_can_not_be_loaded_is_told(tmp_path: Path, code: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(wire.PredictorError, match=words):
        load(tmp_path, code, **options)


@pytest.mark.parametrize("name", ["json", "msgspec", "sys"])
def test_a_file_takes_no_module_s_place(tmp_path: Path, name: str) -> None:
    before = sys.modules[name]
    (tmp_path / f"{name}.py").write_text("class A:\n def predict(self, value): ...")
    with pytest.raises(wire.PredictorError, match=f"{name}.py has the name of a module that is in use"):
        PythonPredictor().load(str(tmp_path), {"file": f"{name}.py"}, lambda loading: None)
    assert sys.modules[name] is before


def test_one_class_of_several_is_named_and_closed(tmp_path: Path) -> None:
    code = """
class Base:
    def predict(self, value): return type(self).__name__
class A(Base):
    def close(self): open(__file__ + ".closed", "w").close()
"""
    predictor, _ = load(tmp_path, code, **{"class": "A"})
    assert ask(predictor, 0) == ["A"]
    predictor.close()
    assert (tmp_path / "model.py.closed").exists()


@dataclass
class Point:
    x: int
    y: "np.ndarray[Any, Any]"


def test_whatever_a_model_gives_becomes_plain() -> None:
    value = {"p": Point(1, np.array([[1.5]])), 2: (np.float32(0.5), b"\x00")}
    assert plain(value) == {"p": {"x": 1, "y": [[1.5]]}, "2": (0.5, b"\x00")}
    with pytest.raises(TypeError, match="holds a module"):
        plain({"a": sys})
