"""SavedModels in an environment where Headway is not installed; right values from arithmetic and from TensorFlow."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headway.core.infer import InferRequest
from headway.errors import HeadwayError, InvalidConfig, InvalidRequest, UnsupportedModel
from headway_wire.tensors import from_array, to_array
from peers.frameworks import ask, serving

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of the SavedModels, and what TensorFlow answers."""
    folder = tmp_path_factory.mktemp("saved_models")
    return folder, ask("tensorflow", "ask_tensorflow.py", folder)


def request(**asked: Any) -> InferRequest:
    return InferRequest(request_id="1", model="flow", **asked)


def config(source: Path, model_type: str = "tensor", **options: Any) -> dict[str, Any]:
    own = {"threads": 1, **options}
    return {
        "source": str(source),
        "framework": "tensorflow",
        "type": model_type,
        "options": own,
        "served_names": ("flow",),
    }


async def test_numbers_of_several_types(models: tuple[Path, Any], tmp_path: Path) -> None:
    async with serving("tensorflow", tmp_path, **config(models[0] / "numbers")) as service:
        signature = await service.signature("flow")
        assert [(spec["name"], spec["datatype"], spec["shape"]) for spec in signature["inputs"]] == [
            ("offset", "INT32", [-1]),
            ("x", "FP32", [-1, 2]),
        ]
        assert signature["can_batch"]
        x, offset = np.array([[1.0, 2.0], [0.25, 0.0]], dtype=np.float32), np.array([10, -20], dtype=np.int32)
        asked = request(tensors=[from_array("x", x), from_array("offset", offset)])
        found = {tensor.name: tensor for tensor in (await service.infer(asked)).tensors}
        wanted = [[3.0, 22.0, 14.0], [-19.75, -19.5, -19.25]]
        assert to_array(found["y"]).tolist() == wanted
        assert {name: tensor.datatype for name, tensor in found.items()} == {
            "y": "FP32",
            "half": "FP16",
            "brain": "BF16",
            "is_more": "BOOL",
        }
        np.testing.assert_array_equal(to_array(found["half"]), np.array(wanted, dtype=np.float16))
        np.testing.assert_array_equal(to_array(found["brain"]), torch.tensor(wanted).bfloat16().float())
        assert to_array(found["is_more"]).tolist() == [[True] * 3, [False] * 3]
        with pytest.raises(InvalidRequest, match="'x' has the shape"):
            await service.infer(request(tensors=[from_array("x", x[:, :1]), from_array("offset", offset)]))
        with pytest.raises(HeadwayError):  # TensorFlow's own words: rows and offsets do not fit
            await service.infer(request(tensors=[from_array("x", x), from_array("offset", np.zeros(3, np.int32))]))
        assert to_array((await service.infer(asked)).tensors[0]).shape == (2, 3)


async def test_another_signature_whose_output_does_not_follow_the_batch(
    models: tuple[Path, Any], tmp_path: Path
) -> None:
    async with serving("tensorflow", tmp_path, **config(models[0] / "numbers", signature="total")) as service:
        assert not (await service.signature("flow")).get("can_batch", False)
        assert (await service.infer(request(value=[[1, 2], [3, 4]]))).value == 10


async def test_texts_are_taken_and_given(models: tuple[Path, Any], tmp_path: Path) -> None:
    async with serving("tensorflow", tmp_path, **config(models[0] / "words")) as service:
        assert (await service.infer(request(value=["ÄB", "C"]))).value == ["äb", "c"]
        assert (await service.infer(request(value="ONE"))).value == ["one"]
        asked = request(tensors=[from_array("text", np.array(["ÄB"], dtype=object))], outputs=["num_bytes"])
        [found] = (await service.infer(asked)).tensors
        assert (found.datatype, to_array(found).tolist()) == ("INT32", [3])


async def test_images_are_classified(models: tuple[Path, Any], tmp_path: Path) -> None:
    folder, answers = models
    image: Any = {"size": 32, "layout": "NHWC"}
    labels = ["a", "b", "c", "d"]
    model = config(folder / "pictures", "image-classification", image=image, scores="softmax", labels=labels)
    async with serving("tensorflow", tmp_path, **model) as service:
        pixels = np.linspace(0, 1, 32 * 32 * 3, dtype=np.float32).reshape(32, 32, 3)
        found = await service.infer(request(value=pixels.tolist()))
        np.testing.assert_allclose(found.value, torch.tensor(answers["logits"]).softmax(-1), rtol=1e-5)
        assert found.labels == labels
        png = BytesIO()
        Image.fromarray((pixels * 255).round().astype(np.uint8)).save(png, "PNG")
        of_image = await service.infer(request(value=png.getvalue()))
        np.testing.assert_allclose(of_image.value, found.value, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("reads", {}, UnsupportedModel, "read or write files, or run Python, which are not run here: ReadFile"),
        ("numbers", {"signature": "other"}, InvalidConfig, "no signature 'other'; it has: serving_default, total"),
        ("open", {}, InvalidConfig, "number of axes of x open: tell it in shapes"),
        ("pictures", {"image": {"size": 32}}, InvalidConfig, r"image makes \[-1, 3, 32, 32\] \(NCHW\)"),
        ("absent", {}, UnsupportedModel, "no saved_model.pb"),
    ],
)
async def test_what_is_not_run_is_told(
    models: tuple[Path, Any], tmp_path: Path, name: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with serving("tensorflow", tmp_path, **config(models[0] / name, **options)) as service:
        with pytest.raises(error, match=words):
            await service.infer(request(value=[0.0]))


async def test_axes_that_the_signature_leaves_open_may_be_told(models: tuple[Path, Any], tmp_path: Path) -> None:
    shapes: Any = {"x": [-1, 2], "y": [-1, 2]}
    async with serving("tensorflow", tmp_path, **config(models[0] / "open", shapes=shapes)) as service:
        assert (await service.infer(request(value=[[1, 2]]))).value == [[2, 4]]
