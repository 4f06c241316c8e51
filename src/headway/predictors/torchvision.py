"""TorchvisionPredictor: a classifier of torchvision by its name, with weights from a file, on images.

`source` is the name ("mobilenet_v2", or as torch.hub writes it "pytorch/vision:mobilenet_v2"), and the option weights a
file; or `source` is the file or its folder, and the option model the name. Images are prepared as torchvision's own
transforms of these weights do it, and ImageNet's labels are torchvision's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headway.predictors.images import ImageOptions
from headway.predictors.options import check_num_labels, invalid_config, read_labels, read_options
from headway.predictors.torch_runner import FREE, InputOptions, TorchRunner, make_input_specs, warm_up
from headway.predictors.torch_weights import SUFFIXES, Mismatch, find_weights, load_weights, read_state_dict
from headway.predictors.torchvision_import import import_torchvision
from headway.predictors.values import Scores, ValueBridge, ValueOptions
from headway_wire import Infer, InferPredictor, Loading, Outputs, PredictorError, Signature
from headway_wire.predictor import Report

_HUB = "pytorch/vision:"
_MAX_LISTED = 5


class TorchvisionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework torchvision."""

    type: str = "image-classification"
    model: str = ""
    """torchvision's name; "": the source is it."""
    kwargs: dict[str, Any] = {}
    """What the model is made with: num_classes."""
    weights: str | msgspec.UnsetType | None = msgspec.UNSET
    """A file of weights. null: none, random ones."""
    weights_key: str | None = None
    """Where the state dict is, in a file that holds more."""
    preset: str = "DEFAULT"
    """Whose transforms and labels are used, in torchvision's words: IMAGENET1K_V1, ..."""
    strict: bool = True
    """Missing, unexpected and misshapen tensors are an error; false: what matches is loaded, the rest told."""
    device: str = "auto"
    """auto, cpu, cuda:N."""
    dtype: str | None = None
    """What it is computed in: float32, bfloat16, float16."""
    threads: int | None = None
    """null: the cores that the process may use."""
    image: ImageOptions | None = None
    """null: as the preset."""
    scores: Scores = "softmax"
    labels: list[str] | str | None = None
    """Names of classes, or a file of them; null: the preset's, where there are as many classes."""


class TorchvisionPredictor(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> Signature:
        """Makes the model, loads its weights, runs it. Raises PredictorError."""
        wanted = read_options(options, TorchvisionOptions)
        report(Loading(phase="build"))
        vision = import_torchvision()
        name, folder, weights = _find_files(source, wanted)
        module, preset = _make_model(vision, name, wanted)
        mismatch = Mismatch()
        if weights is not None:
            report(Loading(phase="read"))
            state = read_state_dict(weights, wanted.weights_key)
            mismatch = load_weights(module, state, strict=wanted.strict, where=weights)
        report(Loading(phase="warm"))
        image = wanted.image or image_options(preset.transforms())
        runner = TorchRunner(module, device=wanted.device, dtype=wanted.dtype, threads=wanted.threads)
        inputs = make_input_specs([InputOptions(name="image", shape=[FREE, *image.shape])], module)
        runner.set_inputs(inputs)
        outputs, can_batch = warm_up(runner, inputs, [None])
        labels = read_labels(wanted.labels, folder)
        num_classes = outputs[0].shape[-1]
        if labels is None and len(preset.meta["categories"]) == num_classes:
            labels = list(preset.meta["categories"])
        check_num_labels(labels, num_classes)
        self._runner = runner
        self._bridge = ValueBridge(ValueOptions(image=image, scores=wanted.scores), inputs, outputs, labels, folder)
        facts = {**runner.facts(), "architecture": name, "mismatch": str(mismatch) or None}
        return Signature(
            task=wanted.type,
            platform="pytorch_torchvision",
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            can_batch=can_batch,
            facts=facts,
        )

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """See InferPredictor."""
        return self._bridge.run(requests, self._runner.run)


def image_options(transforms: Any) -> ImageOptions:
    """How torchvision's preset for classification prepares images, in our words."""
    [resize], [crop] = transforms.resize_size, transforms.crop_size
    interpolation: Any = transforms.interpolation.value
    return ImageOptions(
        size=crop, resize=resize, interpolation=interpolation, mean=list(transforms.mean), std=list(transforms.std)
    )


def _find_files(source: str, wanted: TorchvisionOptions) -> tuple[str, Path, Path | None]:
    """The model's name, its folder and its weights; None: random ones. Raises PredictorError."""
    path = Path(source)
    if path.suffix in SUFFIXES and not path.is_file():
        raise invalid_config(f"there is no file {source}", "source")
    folder = path.parent if path.is_file() else path
    if wanted.weights is None:
        return wanted.model or _name_of(source), folder, None
    if path.exists() and wanted.model:
        if path.is_file():
            return wanted.model, folder, path
        return wanted.model, folder, find_weights(folder, wanted.weights if isinstance(wanted.weights, str) else None)
    if isinstance(wanted.weights, str):
        return wanted.model or _name_of(source), Path(wanted.weights).parent, find_weights(folder, wanted.weights)
    raise invalid_config(
        f"{source} has no weights, and none are fetched: name a file as the option weights, or null for random ones",
        "weights",
    )


def _name_of(source: str) -> str:
    return source.removeprefix(_HUB)


def _make_model(vision: Any, name: str, wanted: TorchvisionOptions) -> tuple[Any, Any]:
    """The module, and the preset with its transforms and labels. Raises PredictorError."""
    known = vision.models.list_models(module=vision.models)
    if name not in known:
        near = [each for each in known if each[:4] == name[:4]][:_MAX_LISTED] or known[:_MAX_LISTED]
        raise invalid_config(
            f"torchvision has no classifier {name[:100]!r}; it has {len(known)}, among them {', '.join(near)}", "model"
        )
    presets: Mapping[str, Any] = vision.models.get_model_weights(name).__members__
    preset = presets.get(wanted.preset)
    if preset is None:
        raise invalid_config(f"preset is {wanted.preset[:100]!r}; those of {name} are {', '.join(presets)}", "preset")
    try:
        return vision.models.get_model(name, weights=None, **wanted.kwargs), preset
    except (TypeError, ValueError) as error:
        raise PredictorError("InvalidConfig", f"torchvision can not make {name}: {error}", "kwargs") from error
