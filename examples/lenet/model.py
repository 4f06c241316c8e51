"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), with ReLU and max pools."""

import torch
from torch import nn


class LeNet(nn.Module):
    """Classes of grey images of 28 x 28 pixels; 61,706 parameters with 10 of them."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, kernel_size=5, padding=2),  # [num_images, 6, 28, 28]
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5),  # [num_images, 16, 10, 10]
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, [num_images, num_classes], of images, [num_images, 1, 28, 28], between 0 and 1."""
        return self.classifier(self.features(images))
