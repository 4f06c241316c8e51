"""TorchPredictor: a PyTorch module of the user's file, with its weights, on arrays, images or texts.

`source` is a folder that holds the module's file and the weights, or the file of weights, beside which the module's
file lies. Without `inputs` the model is one of images, and `image` says what it takes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from headway.predictors.images import ImageOptions
from headway.predictors.options import check_num_labels, invalid_config, read_labels, read_options
from headway.predictors.texts import TextOptions
from headway.predictors.torch_module import make_module
from headway.predictors.torch_runner import (
    FREE,
    InputOptions,
    TorchRunner,
    forward_parameters,
    make_input_specs,
    warm_up,
)
from headway.predictors.torch_weights import Mismatch, find_weights, load_weights, read_state_dict
from headway.predictors.values import Scores, ValueBridge, ValueOptions
from headway_wire import Infer, InferPredictor, Loading, Outputs, Signature, TensorSpec
from headway_wire.predictor import Report


class TorchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework torch."""

    type: str = "tensor"
    """The model's: image-classification, text-classification, tensor, ..."""
    module: str = "model.py"
    """The file of the module's class, in the model's folder or with its whole path."""
    class_name: str = msgspec.field(default="", name="class")
    """A class, or a function that makes the module; "": the file's only class of a module."""
    kwargs: dict[str, Any] = {}
    """What it is made with."""
    weights: str | msgspec.UnsetType | None = msgspec.UNSET
    """A file of weights in the folder. Left out: model.safetensors, or the only one there is. null: random ones."""
    weights_key: str | None = None
    """Where the state dict is, in a file that holds more."""
    strict: bool = True
    """Missing, unexpected and misshapen tensors are an error; false: what matches is loaded, the rest told."""
    device: str = "auto"
    """auto, cpu, cuda:N."""
    dtype: str | None = None
    """What it is computed in: float32, bfloat16, float16; null: as the module is made."""
    threads: int | None = None
    """null: the cores that the process may use."""
    inputs: list[InputOptions] = []
    image: ImageOptions | None = None
    """How images become the first input."""
    text: TextOptions | None = None
    """How texts become the inputs input_ids, attention_mask and token_type_ids."""
    scores: Scores | None = None
    """What is done to the output that answers a value; null: softmax of a classifier, nothing of others."""
    labels: list[str] | str | None = None
    """Names of classes, or a file of them in the folder: a line each, or JSON."""
    output: str = ""
    """The output that answers a value; "": the first."""


class TorchPredictor(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> Signature:
        """Makes the module, loads its weights, runs it. Raises PredictorError."""
        wanted = read_options(options, TorchOptions)
        folder, weights = _find_files(Path(source), wanted)
        report(Loading(phase="build"))
        module = make_module(folder, wanted.module, wanted.class_name, wanted.kwargs)
        mismatch = Mismatch()
        if weights is not None:
            report(Loading(phase="read"))
            state = read_state_dict(weights, wanted.weights_key)
            mismatch = load_weights(module, state, strict=wanted.strict, where=weights)
        self._runner = TorchRunner(module, device=wanted.device, dtype=wanted.dtype, threads=wanted.threads)
        report(Loading(phase="warm"))
        inputs = wanted.inputs or _default_inputs(wanted, module)
        specs = make_input_specs(inputs, module)
        self._runner.set_inputs(specs)
        outputs, can_batch = warm_up(self._runner, specs, [spec.warm_shape for spec in inputs])
        labels = read_labels(wanted.labels, folder)
        return self._connect(wanted, specs, outputs, labels, folder, can_batch, mismatch)

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """See InferPredictor."""
        return self._bridge.run(requests, self._runner.run)

    def _connect(
        self,
        wanted: TorchOptions,
        inputs: list[TensorSpec],
        outputs: list[TensorSpec],
        labels: list[str] | None,
        folder: Path,
        can_batch: bool,
        mismatch: Mismatch,
    ) -> Signature:
        values = ValueOptions(image=wanted.image, text=wanted.text, scores=_choose_scores(wanted), output=wanted.output)
        self._bridge = ValueBridge(values, inputs, outputs, labels, folder)
        check_num_labels(labels, self._bridge.answering(outputs).shape[-1])
        facts = self._runner.facts()
        if mismatch:
            facts["mismatch"] = str(mismatch)
        return Signature(
            task=wanted.type,
            platform="pytorch_torch",
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            can_batch=can_batch,
            facts=facts,
        )


def _find_files(source: Path, wanted: TorchOptions) -> tuple[Path, Path | None]:
    """The model's folder and its weights; None: random ones. Raises PredictorError."""
    if source.is_file():
        return source.parent, source
    if not source.is_dir():
        raise invalid_config(f"there is no file or folder {source}", "source")
    if wanted.weights is None:
        return source, None
    return source, find_weights(source, wanted.weights if isinstance(wanted.weights, str) else None)


def _default_inputs(wanted: TorchOptions, module: Any) -> list[InputOptions]:
    """Of a model of images or of texts. Raises PredictorError for others: forward() tells no shapes."""
    if wanted.image is not None:
        datatype = {"UINT8": "UINT8", "FP16": "FP16"}.get(wanted.image.datatype, "FP32")
        return [InputOptions(shape=[FREE, *wanted.image.shape], datatype=datatype)]
    parameters = forward_parameters(module)
    if wanted.text is not None:
        names = [name for name in parameters if name in ("input_ids", "attention_mask", "token_type_ids")]
        if names:
            return [InputOptions(name=name, shape=[FREE, FREE], datatype="INT64") for name in names]
    raise invalid_config(
        f"forward() takes {', '.join(parameters) or 'nothing'}: give `inputs`, a shape (and datatype) each, or `image`",
        "inputs",
    )


def _choose_scores(wanted: TorchOptions) -> Scores:
    if wanted.scores is not None:
        return wanted.scores
    return "softmax" if wanted.type.endswith("classification") else "none"
