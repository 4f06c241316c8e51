"""Answers of torchvision itself, run in its own environment:  ask_torchvision.py MODEL WEIGHTS IMAGE PRESET

Random weights, drawn with a seed, are written to WEIGHTS; the probabilities of ImageNet's classes for IMAGE, prepared
by torchvision's own transforms, and the labels are printed as JSON.
"""

import json
import sys

import torch
from PIL import Image

OPERATORS = ["nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"]
BACKWARD = [f"_{name}_backward" for name in OPERATORS[2:]]
declared = torch.library.Library("torchvision", "DEF")
for operator in OPERATORS + BACKWARD:  # of detection, which the wheel has compiled for another PyTorch
    declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402


def main(name: str, weights: str, image: str, preset: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torchvision.models.get_model(name, weights=None)
    model.train()
    with torch.no_grad():
        for _ in range(3):  # statistics of their own
            model(torch.randn(4, 3, 64, 64))
    torch.save(model.eval().state_dict(), weights)
    told = torchvision.models.get_model_weights(name)[preset]
    with torch.inference_mode():
        pixels = told.transforms()(Image.open(image).convert("RGB"))
        scores = model(pixels[None]).softmax(-1)
    print(json.dumps({"scores": scores.tolist(), "labels": told.meta["categories"], "mean": float(pixels.mean())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
