"""TensorflowPredictor: a SavedModel of TensorFlow, by one of its signatures, on arrays, images or texts.

`source` is the folder that saved_model.pb lies in. Strings are BYTES. A SavedModel is a program: one with operations
that read or write files that its input names, or that run Python, is refused.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headway.predictors.arrays import Arrays
from headway.predictors.images import ImageOptions
from headway.predictors.options import (
    check_num_labels,
    invalid_config,
    num_threads,
    read_labels,
    read_options,
    unsupported_model,
)
from headway.predictors.texts import TextOptions
from headway.predictors.values import Scores, ValueBridge, ValueOptions
from headway_wire import Infer, InferPredictor, Loading, Outputs, PredictorError, Signature, TensorSpec
from headway_wire.predictor import Report
from headway_wire.tensors import NUMPY_NAMES

FREE = -1
_DATATYPES = {name: datatype for datatype, name in NUMPY_NAMES.items()} | {"bfloat16": "BF16", "string": "BYTES"}
"""TensorFlow's types as the protocol's."""
REFUSED_OPERATIONS = frozenset(
    {"ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "FixedLengthRecordReaderV2"}
)
_MAX_LISTED = 20


class TensorflowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework tensorflow."""

    type: str = "tensor"
    """The model's: image-classification, text-classification, tensor, ..."""
    signature: str = "serving_default"
    device: str = "auto"
    """auto: a GPU where TensorFlow sees one; cpu; cuda:N."""
    threads: int | None = None
    """null: the cores that the process may use."""
    shapes: dict[str, list[int]] = {}
    """Of inputs and outputs whose number of axes the signature leaves open. -1: any."""
    warm_shapes: dict[str, list[int]] = {}
    """What the model is warmed up with, by input; left out: 1 for each -1."""
    image: ImageOptions | None = None
    """How images become the input; most models of TensorFlow want the layout NHWC."""
    text: TextOptions | None = None
    """How texts become input_ids, attention_mask and token_type_ids. A model of strings takes texts without."""
    scores: Scores = "none"
    """What is done to the output that answers a value: softmax or sigmoid, where the model gives logits."""
    labels: list[str] | str | None = None
    """Names of classes, or a file of them in the folder: a line each, or JSON."""
    output: str = ""
    """The output that answers a value; "": the first by its name."""


class TensorflowPredictor(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> Signature:
        """Loads the SavedModel and runs it once. Raises PredictorError."""
        wanted, folder = read_options(options, TensorflowOptions), Path(source)
        self._tensorflow = _start(num_threads(wanted.threads), wanted.device)
        report(Loading(phase="read"))
        check_operations(folder)
        self._model, self._function = _load_signature(self._tensorflow, folder, wanted.signature)
        inputs, outputs = _specs(self._function, wanted.shapes)
        self._inputs = {spec.name: spec for spec in inputs}
        labels = read_labels(wanted.labels, folder)
        values = ValueOptions(image=wanted.image, text=wanted.text, scores=wanted.scores, output=wanted.output)
        self._bridge = ValueBridge(values, inputs, outputs, labels, folder)
        report(Loading(phase="warm"))
        found = self._warm_up(inputs, wanted.warm_shapes)
        if labels is not None:
            check_num_labels(labels, found[self._bridge.answering(outputs).name].shape[-1])
        return Signature(
            task=wanted.type,
            platform="tensorflow_savedmodel",
            inputs=inputs,
            outputs=outputs,
            labels=labels,
            can_batch=all(spec.shape and spec.shape[0] == FREE for spec in [*inputs, *outputs]),
            facts={"threads": num_threads(wanted.threads), "tensorflow": self._tensorflow.__version__},
        )

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """See InferPredictor."""
        return self._bridge.run(requests, self._run)

    def _run(self, arrays: Arrays) -> Arrays:
        tensors = {name: self._to_tensor(array, self._inputs[name]) for name, array in arrays.items()}
        return {name: _to_numpy(tensor) for name, tensor in sorted(self._function(**tensors).items())}

    def _to_tensor(self, array: np.ndarray, spec: TensorSpec) -> Any:
        tensor = self._tensorflow.convert_to_tensor(array)
        return self._tensorflow.cast(tensor, "bfloat16") if spec.datatype == "BF16" else tensor

    def _warm_up(self, inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> Arrays:
        arrays = {}
        for spec in inputs:
            shape = list(shapes.get(spec.name, [1 if size == FREE else size for size in spec.shape]))
            kind = "float32" if spec.datatype == "BF16" else NUMPY_NAMES.get(spec.datatype)
            arrays[spec.name] = np.full(shape, b"", dtype=object) if kind is None else np.zeros(shape, dtype=kind)
        try:
            return self._run(arrays)
        except Exception as error:  # TensorFlow's own, of its graph
            told = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            raise PredictorError(
                "ModelError", f"the model failed on zeros ({told}): {_words(error)}; other shapes: warm_shapes"
            ) from error


def check_operations(folder: Path) -> None:
    """Raises PredictorError for what is no SavedModel, and for one with operations that are not run here."""
    path = folder / "saved_model.pb"
    if not path.is_file():
        raise unsupported_model(f"{folder} is no SavedModel: it has no saved_model.pb, as tf.saved_model.save writes")
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel()
    try:
        saved.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's own, which differs between its implementations
        raise PredictorError("CorruptCheckpoint", f"{path} is no whole SavedModel: {_words(error)}") from error
    found = sorted({node.op for node in _nodes(saved)} & REFUSED_OPERATIONS)
    if found:
        raise unsupported_model(
            f"{path} has operations that read or write files, or run Python, which are not run here: {', '.join(found)}"
        )


def _nodes(saved: Any) -> Iterator[Any]:
    for graph in saved.meta_graphs:
        yield from graph.graph_def.node
        for function in graph.graph_def.library.function:
            yield from function.node_def


def _start(threads: int, device: str) -> Any:
    """TensorFlow, with its device and its threads set: one operation at a time on all of them.

    Raises PredictorError for a device that is not there.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow

    config = tensorflow.config
    if device != "auto":
        gpus = config.list_physical_devices("GPU")
        seen = {"cpu": [], **{f"cuda:{number}": [gpu] for number, gpu in enumerate(gpus)}}
        if device not in seen:
            raise invalid_config(f"device is {device[:100]!r}; it must be auto or one of {', '.join(seen)}", "device")
        config.set_visible_devices(seen[device], "GPU")
    config.threading.set_intra_op_parallelism_threads(threads)
    config.threading.set_inter_op_parallelism_threads(1)
    return tensorflow


def _load_signature(tensorflow: Any, folder: Path, name: str) -> tuple[Any, Any]:
    """The model, which owns the variables, and the function. Raises PredictorError."""
    try:
        model = tensorflow.saved_model.load(str(folder))
    except Exception as error:  # of files, of protobuf, of operations that this TensorFlow has not
        raise PredictorError("ModelError", f"TensorFlow can not load {folder}: {_words(error)}") from error
    if name not in model.signatures:
        known = ", ".join(list(model.signatures)[:_MAX_LISTED]) or "none"
        raise invalid_config(f"the model has no signature {name[:100]!r}; it has: {known}", "signature")
    return model, model.signatures[name]


def _specs(function: Any, shapes: Mapping[str, list[int]]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs, in the order of their names. Raises PredictorError for `shapes` of none of them."""
    _, inputs = function.structured_input_signature
    outputs = function.structured_outputs
    for name in shapes:
        if name not in inputs and name not in outputs:
            raise invalid_config(f"shapes has {name[:100]!r}; there are {', '.join([*inputs, *outputs])}", "shapes")
    return (
        [_spec(name, spec, shapes) for name, spec in sorted(inputs.items())],
        [_spec(name, spec, shapes) for name, spec in sorted(outputs.items())],
    )


def _spec(name: str, spec: Any, shapes: Mapping[str, list[int]]) -> TensorSpec:
    """Raises PredictorError for a type that the protocol has not, and for an unknown number of axes."""
    datatype = _DATATYPES.get(spec.dtype.name)
    if datatype is None:
        raise unsupported_model(f"{name} is {spec.dtype.name}, which the Open Inference Protocol has not")
    if name in shapes:
        return TensorSpec(name=name, datatype=datatype, shape=shapes[name])
    if spec.shape.rank is None:
        raise invalid_config(f"the signature leaves the number of axes of {name} open: tell it in shapes", "shapes")
    return TensorSpec(name=name, datatype=datatype, shape=[FREE if size is None else size for size in spec.shape])


def _to_numpy(tensor: Any) -> np.ndarray:
    array = tensor.numpy()
    if tensor.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    return np.asarray(array, dtype=object) if isinstance(array, bytes) else np.asarray(array)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
