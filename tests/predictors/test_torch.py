"""A user's module and its weights on arrays and images; right values from torch itself, called by hand."""

import functools
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from headway.predictors.torch import TorchPredictor
from headway_wire import Infer, PredictorError, Signature, Tensor
from headway_wire.tensors import from_array, to_array

LENET = Path(__file__).parents[2] / "examples" / "lenet"
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4, num_classes=3):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, num_classes)
        self.dropout = nn.Dropout(0.5)

    def forward(self, points):
        return self.last(self.dropout(self.norm(self.first(points)).relu()))

class Two(nn.Module):
    def forward(self, a, b):
        half, brain = (a / 2).half(), (a / 3).bfloat16()
        return {"sum": a + b, "is_more": a > b, "half": half, "brain": brain, "label": "no tensor"}

class Total(nn.Module):
    def forward(self, x):
        return x.sum().reshape(1)

class Similar(nn.Module):
    def forward(self, x):
        return x @ x.T

class Broken(nn.Module):
    def forward(self, x):
        raise RuntimeError("out of coffee")

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))

def make_net(num_classes):
    return Net(num_classes=num_classes)

def make_nothing():
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def net(folder: Path) -> Any:
    """A Net whose statistics are not those of a new one; its weights are the folder's."""
    namespace: dict[str, Any] = {}
    exec(MODULE, namespace)
    torch.manual_seed(1)
    module = namespace["Net"]()
    module.train()(torch.randn(64, 2))
    save_file(module.eval().state_dict(), folder / "model.safetensors")
    return module


Loaded = Callable[..., tuple[TorchPredictor, Signature]]


@pytest.fixture
def load(folder: Path) -> Loaded:
    def run(source: Path | None = None, **options: Any) -> tuple[TorchPredictor, Signature]:
        predictor = TorchPredictor()
        options = {"threads": 1, "class": "Net", "inputs": [{"shape": [-1, 2]}], **options}
        return predictor, predictor.load(str(source or folder), options, lambda loading: None)

    return run


def answer(predictor: TorchPredictor, **asked: Any) -> dict[str, np.ndarray]:
    [found] = predictor.infer([Infer(request_id="1", **asked)])
    assert found.error is None
    return {tensor.name: to_array(tensor) for tensor in found.tensors}


def points(rows: list[list[float]]) -> Tensor:
    return from_array("points", np.array(rows, dtype=np.float32))


def test_tensors_are_answered_as_the_module_does_in_eval(load: Loaded, net: Any) -> None:
    predictor, signature = load()
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.inputs] == [("points", "FP32", [-1, 2])]
    assert [(spec.name, spec.datatype, spec.shape) for spec in signature.outputs] == [("output", "FP32", [-1, 3])]
    assert signature.can_batch
    assert signature.facts["num_parameters"] == sum(weight.numel() for weight in net.parameters())
    rows = [[0.5, -1.0], [2.0, 3.0]]
    with torch.inference_mode():
        wanted = net(torch.tensor(rows))
    for _ in range(2):  # dropout would not give it twice
        np.testing.assert_array_equal(answer(predictor, tensors=[points(rows)])["output"], wanted)


def test_an_output_of_items_by_items_is_computed_alone(load: Loaded) -> None:
    _, signature = load(**{"class": "Similar"}, weights=None)
    assert not signature.can_batch
    assert signature.outputs[0].shape == [-1, -1]


def test_requests_of_a_batch_get_their_own_rows(load: Loaded, net: Any) -> None:
    predictor, _ = load()
    rows = torch.randn(5, 2)
    with torch.inference_mode():
        wanted = net(rows)
    parts = [rows[:1], rows[1:4], rows[4:]]
    requests = [Infer(request_id=str(place), tensors=[points(part.tolist())]) for place, part in enumerate(parts)]
    found = [to_array(outputs.tensors[0]) for outputs in predictor.infer(requests)]
    assert [len(part) for part in found] == [1, 3, 1]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-6, atol=1e-6)


def test_a_classifier_answers_a_value_with_probabilities_and_labels(load: Loaded, net: Any) -> None:
    predictor, signature = load(type="image-classification", labels=["a", "b", "c"])
    assert signature.task == "image-classification"
    assert signature.labels == ["a", "b", "c"]
    [found] = predictor.infer([Infer(request_id="1", value=[[0.5, -1.0]])])
    with torch.inference_mode():
        wanted = net(torch.tensor([[0.5, -1.0]])).softmax(-1)
    np.testing.assert_allclose(found.value, wanted, rtol=1e-6)
    assert found.labels == ["a", "b", "c"]
    logits, _ = load(type="image-classification", scores="none")
    [found] = logits.infer([Infer(request_id="1", value=[0.5, -1.0])])
    np.testing.assert_allclose(torch.tensor(found.value).softmax(-1), wanted, rtol=1e-6)


def test_inputs_and_outputs_have_their_own_types(load: Loaded) -> None:
    inputs = [{"shape": [-1, 2]}, {"shape": [-1, 2], "datatype": "FP32"}]
    predictor, signature = load(**{"class": "Two"}, weights=None, inputs=inputs)
    assert [spec.name for spec in signature.inputs] == ["a", "b"]
    types = {spec.name: spec.datatype for spec in signature.outputs}
    assert types == {"sum": "FP32", "is_more": "BOOL", "half": "FP16", "brain": "BF16"}
    a, b = np.array([[1.0, 2.0]], dtype=np.float32), np.array([[0.5, 4.0]], dtype=np.float32)
    found = answer(predictor, tensors=[from_array("b", b), from_array("a", a)])
    assert found["sum"].tolist() == [[1.5, 6.0]]
    assert found["is_more"].tolist() == [[True, False]]
    assert found["half"].dtype == np.float16
    assert found["brain"].tolist() == (torch.tensor(a) / 3).bfloat16().float().tolist()
    assert list(answer(predictor, tensors=[from_array("b", b), from_array("a", a)], outputs=["sum"])) == ["sum"]
    with pytest.raises(PredictorError, match="the model has 2 inputs"):
        predictor_error(predictor, value=[[1.0, 2.0]])


def predictor_error(predictor: TorchPredictor, **asked: Any) -> None:
    """Raises the error that the request is answered by."""
    [found] = predictor.infer([Infer(request_id="1", **asked)])
    assert found.error is not None
    raise PredictorError(found.error.kind, found.error.message)


def test_not_a_number_is_data(load: Loaded) -> None:
    inputs = [{"shape": [-1, 2]}, {"shape": [-1, 2]}]
    predictor, _ = load(**{"class": "Two"}, weights=None, inputs=inputs)
    bad = np.array([[np.nan, np.inf]], dtype=np.float32)
    found = answer(predictor, tensors=[from_array("a", bad), from_array("b", bad)])["sum"]
    np.testing.assert_array_equal(found, [[np.nan, np.inf]])


def test_a_model_whose_output_does_not_follow_the_batch_is_not_batched(load: Loaded) -> None:
    _, signature = load(**{"class": "Total"}, weights=None)
    assert not signature.can_batch
    assert signature.outputs[0].shape == [1]
    _, fixed = load(weights=None, inputs=[{"shape": [1, 2]}])
    assert not fixed.can_batch


def test_a_number_type_is_computed_in(load: Loaded, net: Any) -> None:
    predictor, signature = load(dtype="bfloat16")
    assert signature.outputs[0].datatype == "BF16"
    assert signature.facts["dtype"] == "bfloat16"
    rows = [[0.5, -1.0]]
    with torch.inference_mode():
        wanted = net.bfloat16()(torch.tensor(rows).bfloat16()).float()
    np.testing.assert_array_equal(answer(predictor, tensors=[points(rows)])["output"], wanted)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.bin"])
def test_a_state_dict_of_torch_is_read(load: Loaded, net: Any, folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(net.state_dict(), folder / name)
    predictor, _ = load()
    with torch.inference_mode():
        wanted = net(torch.tensor([[1.0, 2.0]]))
    np.testing.assert_array_equal(answer(predictor, tensors=[points([[1.0, 2.0]])])["output"], wanted)
    again, _ = load(folder / name)
    np.testing.assert_array_equal(answer(again, tensors=[points([[1.0, 2.0]])])["output"], wanted)


def test_a_state_dict_within_a_file_is_found_by_its_key(load: Loaded, net: Any, folder: Path) -> None:
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, folder / "last.pt")
    with pytest.raises(PredictorError, match="no state dict but state_dict, epoch: name the one"):
        load(weights="last.pt")
    predictor, _ = load(weights="last.pt", weights_key="state_dict")
    assert answer(predictor, tensors=[points([[1.0, 2.0]])])["output"].shape == (1, 3)
    with pytest.raises(PredictorError, match="nothing named 'model'; it has state_dict, epoch"):
        load(weights="last.pt", weights_key="model")


def test_tensors_that_do_not_match_are_listed(load: Loaded, net: Any, folder: Path) -> None:
    state = net.state_dict()
    del state["last.bias"]
    state["extra"] = torch.zeros(1)
    state["first.weight"] = torch.zeros(4, 5)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(PredictorError) as caught:
        load()
    assert caught.value.error.kind == "TensorMismatch"
    for words in ("1 missing (last.bias)", "1 unexpected (extra)", "(first.weight [4, 5], the module has [4, 2])"):
        assert words in caught.value.error.message
    predictor, signature = load(strict=False)
    assert "1 missing (last.bias)" in signature.facts["mismatch"]
    np.testing.assert_array_equal(predictor._runner.module.last.weight, net.last.weight.detach())


def test_weights_of_which_nothing_fits_are_refused_even_if_not_strict(load: Loaded, folder: Path) -> None:
    save_file({"other": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(PredictorError, match=r"7 missing|8 missing|missing \(first.weight") as caught:
        load(strict=False)
    assert caught.value.error.kind == "TensorMismatch"


def test_a_tensor_that_two_names_share_may_be_in_the_file_once(load: Loaded, folder: Path) -> None:
    weight = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    save_file({"a.weight": weight}, folder / "model.safetensors")
    predictor, _ = load(**{"class": "Tied"})
    found = answer(predictor, tensors=[from_array("x", np.ones((1, 2), dtype=np.float32))])["output"]
    assert found.tolist() == [[4.0, 9.0]]


def test_programs_are_not_weights(load: Loaded, net: Any, folder: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 3)), folder / "whole.pt")
    with pytest.raises(PredictorError, match="no file of tensors alone, and nothing else is read") as caught:
        load(weights="whole.pt")
    assert caught.value.error.kind == "UnsupportedModel"
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.trace(net, torch.zeros(1, 2)).save(folder / "traced.pt")
    with pytest.raises(PredictorError, match="a TorchScript archive"):
        load(weights="traced.pt")
    torch.export.save(torch.export.export(net, (torch.zeros(1, 2),)), folder / "exported.pt2")
    with pytest.raises(PredictorError, match=r"a torch.export archive"):
        load(weights="exported.pt2")


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_a_file_that_is_cut_off_is_told(load: Loaded, net: Any, folder: Path, name: str) -> None:
    torch.save(net.state_dict(), folder / "model.pt")
    path = folder / name
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(PredictorError) as caught:
        load(weights=name)
    assert caught.value.error.kind == "CorruptCheckpoint"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"class": "Net", "weights": "nothing.pt"}, "InvalidConfig", "there is no file"),
        ({"class": "Net", "weights": "../model.py"}, "InvalidConfig", "outside"),
        ({"class": "Net"}, "InvalidConfig", "has 0 files of weights"),
        ({"class": "Absent", "weights": None}, "InvalidConfig", "no class or function 'Absent'"),
        ({"class": "", "weights": None}, "InvalidConfig", r"6 modules \(Net, Two, Total, Similar, Broken, Tied\)"),
        ({"class": "make_nothing", "weights": None}, "InvalidConfig", "made a int"),
        ({"class": "Net", "kwargs": {"depth": 2}, "weights": None}, "ModelError", r"Net\(depth=2\) raised TypeError"),
        ({"class": "Broken", "weights": None}, "ModelError", "RuntimeError: out of coffee"),
        ({"class": "Net", "weights": None, "inputs": []}, "InvalidConfig", "forward.. takes points: give `inputs`"),
        ({"class": "Net", "weights": None, "inputs": [{"shape": [-1, 3]}]}, "ModelError", "failed on zeros"),
        ({"class": "Net", "weights": None, "inputs": [{"shape": [-1, 2]}] * 2}, "InvalidConfig", "takes 1: points"),
        ({"class": "Net", "weights": None, "inputs": [{"shape": [1], "datatype": "BYTES"}]}, "InvalidConfig", "BYTES"),
        ({"class": "Net", "weights": None, "labels": ["a"]}, "InvalidConfig", "1 labels, and the model has 3"),
        ({"class": "Net", "weights": None, "device": "cuda:99"}, "InvalidConfig", "torch sees"),
        ({"class": "Net", "weights": None, "device": "tpu"}, "InvalidConfig", "device is 'tpu'"),
        ({"class": "Net", "weights": None, "dtype": "int4"}, "InvalidConfig", "dtype is 'int4'"),
        ({"class": "Net", "weights": None, "threads": 0}, "InvalidConfig", "threads is 0"),
        ({"class": "Net", "weights": None, "colour": "red"}, "InvalidConfig", "no option 'colour'; there are"),
        ({"class": "Net", "weights": None, "strict": "yes"}, "InvalidConfig", "Expected `bool`, got `str`"),
        ({"class": "Net", "weights": None, "image": {"width": 3}}, "InvalidConfig", "unknown field `width`"),
        ({"class": "Net", "weights": None, "output": "other"}, "InvalidConfig", "output is 'other'"),
        ({"class": "Net", "weights": None, "module": "absent.py"}, "InvalidConfig", "no file"),
    ],
)
def test_what_can_not_be_loaded_is_told_by_name(load: Loaded, options: dict[str, Any], kind: str, words: str) -> None:
    with pytest.raises(PredictorError, match=words) as caught:
        load(**options)
    assert caught.value.error.kind == kind


def test_a_function_may_make_the_module(load: Loaded) -> None:
    _, signature = load(**{"class": "make_net", "kwargs": {"num_classes": 5}}, weights=None)
    assert signature.outputs[0].shape == [-1, 5]


def test_a_file_that_can_not_be_imported_says_why(load: Loaded, folder: Path) -> None:
    (folder / "model.py").write_text("import nothing_of_this_name")
    with pytest.raises(PredictorError, match="ModuleNotFoundError: No module named 'nothing_of_this_name'"):
        load(weights=None)


def test_the_file_may_import_others_beside_it_that_shadow_no_library(load: Loaded, folder: Path) -> None:
    (folder / "torch.py").write_text("raise RuntimeError('shadowed')")
    (folder / "layers_of_lenet_test.py").write_text("WIDTH = 6")
    (folder / "model.py").write_text(MODULE + "\nimport layers_of_lenet_test\nassert layers_of_lenet_test.WIDTH == 6\n")
    load(weights=None)


DIGITS = functools.cache(load_digits)


def digit_png(number: int) -> bytes:
    """A digit as it might come from a browser: 8 x 8, grey."""
    buffer = BytesIO()
    Image.fromarray((DIGITS().images[number] * 255 / 16).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_lenet_reads_handwritten_digits_from_images() -> None:
    predictor = TorchPredictor()
    options = {
        "threads": 1,
        "type": "image-classification",
        "image": {"size": 28, "channels": "L"},
        "labels": [str(digit) for digit in range(10)],
    }
    signature = predictor.load(str(LENET), options, lambda loading: None)
    assert signature.inputs[0].shape == [-1, 1, 28, 28]
    assert signature.can_batch
    # Behind the first 1,397, which it was trained on (examples/lenet/train.py).
    numbers = list(range(1397, 1797, 2))
    requests = [Infer(request_id=str(number), value=digit_png(number)) for number in numbers]
    found = [outputs.value[0] for outputs in predictor.infer(requests)]
    right = [int(np.argmax(scores)) == DIGITS().target[number] for number, scores in zip(numbers, found, strict=True)]
    assert np.mean(right) > 0.95
    np.testing.assert_allclose(np.sum(found, axis=-1), 1, rtol=1e-5)
    [several] = predictor.infer([Infer(request_id="1", value=[digit_png(1500), digit_png(1501)])])
    assert np.argmax(several.value, axis=-1).tolist() == DIGITS().target[1500:1502].tolist()
    [bad] = predictor.infer([Infer(request_id="2", value=b"no image")])
    assert bad.error is not None
    assert bad.error.kind == "InvalidRequest"
