"""How model.safetensors was made, in half a minute: python train.py  (needs torch, safetensors, scikit-learn, Pillow)

scikit-learn's 1,797 handwritten digits, the first 1,397 of them, enlarged to 28 x 28 as Headway will enlarge them.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits

from model import LeNet

NUM_TRAINED = 1397


def enlarge(digit: np.ndarray) -> np.ndarray:
    """[8, 8] of 0 to 16 -> [1, 28, 28] of 0 to 1."""
    image = Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize((28, 28), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.float32)[None] / 255


def main() -> None:
    """Trains, tells the accuracy on the other digits, writes the weights."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(np.stack([enlarge(digit) for digit in digits.images]))
    classes = torch.tensor(digits.target)
    model = LeNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(30):
        for batch in torch.randperm(NUM_TRAINED).split(32):
            loss = torch.nn.functional.cross_entropy(model(images[batch]), classes[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        right = model.eval()(images[NUM_TRAINED:]).argmax(-1) == classes[NUM_TRAINED:]
    print(f"{right.float().mean():.3f} of {len(right)} digits that it was not trained on")
    save_file(model.state_dict(), Path(__file__).parent / "model.safetensors")


if __name__ == "__main__":
    main()
