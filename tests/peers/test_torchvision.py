"""torchvision in an environment where Headway is not installed; right values from torchvision itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets

from headway.core.infer import InferRequest
from headway.errors import InvalidConfig, InvalidRequest
from headway_wire.tensors import from_array, to_array
from peers.frameworks import ask, serving

pytestmark = pytest.mark.peers
PHOTO = Path(sklearn.datasets.__file__).parent / "images" / "flower.jpg"


def request(**asked: Any) -> InferRequest:
    return InferRequest(request_id="1", model="vision", **asked)


@pytest.mark.parametrize(
    ("source", "preset"),
    [("pytorch/vision:mobilenet_v2", "IMAGENET1K_V2"), ("mobilenet_v2", "IMAGENET1K_V1"), ("resnet18", "DEFAULT")],
)
async def test_a_photo_is_classified_as_by_torchvision(tmp_path: Path, source: str, preset: str) -> None:
    weights = tmp_path / "weights.pth"
    wanted = ask("torchvision", "ask_torchvision.py", source.rpartition(":")[2], weights, PHOTO, preset)
    options = {"threads": 1, "weights": str(weights), "preset": preset}
    model: Any = {"source": source, "framework": "torchvision", "type": "image-classification", "options": options}
    async with serving("torchvision", tmp_path, served_names=("vision",), **model) as service:
        found = await service.infer(request(value=PHOTO.read_bytes()))
        np.testing.assert_allclose(found.value, wanted["scores"], rtol=2e-3, atol=1e-6)
        assert found.labels == wanted["labels"]
        assert found.labels[985] == "daisy"
        with pytest.raises(InvalidRequest, match="no image"):
            await service.infer(request(value=b"GIF89a"))
        image = np.zeros((2, 3, 224, 224), dtype=np.float32)
        [logits] = (await service.infer(request(tensors=[from_array("image", image)]))).tensors
        assert logits.shape == [2, 1000]
        assert to_array(logits).dtype == np.float32


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("mobilenet_v9", {"weights": None}, "no classifier 'mobilenet_v9'; it has .* mobilenet_v2"),
        ("fasterrcnn_resnet50_fpn", {"weights": None}, "no classifier 'fasterrcnn"),
        ("mobilenet_v2", {}, "null for random ones"),
        ("mobilenet_v2", {"weights": None, "preset": "V7"}, "those of mobilenet_v2 are IMAGENET1K_V1, IMAGENET1K_V2"),
        ("mobilenet_v2", {"weights": None, "kwargs": {"depth": 2}}, "can not make mobilenet_v2: .*depth"),
    ],
)
async def test_what_torchvision_has_not_is_told(
    tmp_path: Path, source: str, options: dict[str, Any], words: str
) -> None:
    model: Any = {"source": source, "framework": "torchvision", "type": "image-classification", "options": options}
    async with serving("torchvision", tmp_path, served_names=("vision",), **model) as service:
        with pytest.raises(InvalidConfig, match=words):
            await service.infer(request(value=[0.0]))


async def test_random_weights_are_made_where_they_are_asked_for_by_name(tmp_path: Path) -> None:
    options = {"weights": None, "threads": 1, "kwargs": {"num_classes": 2}, "labels": ["cat", "dog"]}
    model: Any = {"source": "mobilenet_v2", "framework": "torchvision", "options": options}
    async with serving(
        "torchvision", tmp_path, served_names=("vision",), type="image-classification", **model
    ) as service:
        found = await service.infer(request(value=PHOTO.read_bytes()))
        assert found.labels == ["cat", "dog"]
        assert np.sum(found.value) == pytest.approx(1)
