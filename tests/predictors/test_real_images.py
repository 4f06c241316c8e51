"""EfficientNet-Lite0, which others trained, on photos: through torch and, exported, through ONNX Runtime.

Right values: what is on the photos, and the package's own model called by hand on what Pillow makes of them.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image

from headway.predictors.onnx import OnnxPredictor
from headway.predictors.torch import TorchPredictor
from headway_wire import Infer
from headway_wire.tensors import from_array, to_array
from real_weights import EFFICIENTNET_LITE0, fetch

EXAMPLE = Path(__file__).parents[2] / "examples" / "efficientnet"
IMAGE: dict[str, Any] = {
    "size": 224,
    "resize": "crop",
    "interpolation": "bicubic",
    "scale": 1.0,
    "mean": [127.0],
    "std": [128.0],
}
CATS = {281: "tabby", 282: "tiger cat", 285: "Egyptian cat"}
WANTED = {"coffee": {967: "espresso"}, "chelsea": CATS, "flower": {985: "daisy"}, "china": {698: "palace"}}
"""What a photo shows, by ImageNet's numbers of classes."""


def photo(name: str) -> Path:
    """Of scikit-image or scikit-learn, neither of which is imported for it."""
    if name in ("flower", "china"):
        return Path(sklearn.datasets.__file__).parent / "images" / f"{name}.jpg"
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / f"{name}.png"


@cache
def by_hand() -> tuple[Any, dict[str, np.ndarray]]:
    """The package's module with its weights, and its probabilities of each photo."""
    spec = importlib.util.spec_from_file_location("efficientnet_example", EXAMPLE / "model.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    module = example.make_lite0().eval()
    module.load_state_dict(torch.load(fetch(EFFICIENTNET_LITE0), weights_only=True))
    found = {}
    for name in WANTED:
        image = Image.open(photo(name)).convert("RGB")
        ratio = 224 / min(image.size)
        image = image.resize((int(image.width * ratio), int(image.height * ratio)), Image.Resampling.BICUBIC)
        left, top = round((image.width - 224) / 2), round((image.height - 224) / 2)
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), dtype=np.float32)
        with torch.inference_mode():
            logits = module(torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None])
        found[name] = logits.softmax(-1).numpy()
    return module, found


@pytest.fixture(scope="module")
def lite0() -> TorchPredictor:
    """The model as a user of the example serves it."""
    torch.set_num_threads(1)
    predictor = TorchPredictor()
    options = {
        "type": "image-classification",
        "module": str(EXAMPLE / "model.py"),
        "class": "make_lite0",
        "image": IMAGE,
        "threads": 1,
    }
    signature = predictor.load(str(fetch(EFFICIENTNET_LITE0)), options, lambda loading: None)
    assert signature.facts["num_parameters"] == 4_652_008
    assert signature.can_batch
    assert signature.outputs[0].shape == [-1, 1000]
    return predictor


def test_photos_are_what_they_show(lite0: TorchPredictor) -> None:
    requests = [Infer(request_id=name, value=photo(name).read_bytes()) for name in WANTED]
    for outputs in lite0.infer(requests):
        assert int(np.argmax(outputs.value)) in WANTED[outputs.request_id]
        np.testing.assert_allclose(outputs.value, by_hand()[1][outputs.request_id], atol=1e-4)


def test_coffee_is_espresso_almost_surely(lite0: TorchPredictor) -> None:
    [outputs] = lite0.infer([Infer(request_id="1", value=photo("coffee").read_bytes())])
    assert outputs.value[0][967] > 0.8


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Constant folding")
def test_the_same_model_as_onnx_gives_the_same(lite0: TorchPredictor, tmp_path: Path) -> None:
    module, _ = by_hand()
    path = tmp_path / "lite0.onnx"
    axes = {"image": {0: "batch"}, "logits": {0: "batch"}}
    torch.onnx.export(
        module,
        (torch.zeros(1, 3, 224, 224),),
        path,
        dynamo=False,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes=axes,
    )
    predictor = OnnxPredictor()
    options = {"type": "image-classification", "image": IMAGE, "scores": "softmax", "threads": 1}
    signature = predictor.load(str(path), options, lambda loading: None)
    assert signature.can_batch
    requests = [Infer(request_id=name, value=photo(name).read_bytes()) for name in WANTED]
    for ours, other in zip(predictor.infer(requests), lite0.infer(requests), strict=True):
        np.testing.assert_allclose(ours.value, other.value, atol=1e-4)
    images = np.random.default_rng(0).normal(size=(2, 3, 224, 224)).astype(np.float32)
    [tensors] = predictor.infer([Infer(request_id="1", tensors=[from_array("image", images)])])
    with torch.inference_mode():
        np.testing.assert_allclose(to_array(tensors.tensors[0]), module(torch.from_numpy(images)), atol=1e-3)
