"""OnnxPredictor: any ONNX model on ONNX Runtime: arrays, or images and texts that are prepared as the options say.

Names, datatypes and shapes are the session's own: a dimension without a number is any size, a string input is BYTES.
Of a classifier that was made by scikit-learn's converter, the probabilities (a list of maps) are an array of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headway.predictors.arrays import Arrays, run_batch
from headway.predictors.images import ImageOptions
from headway.predictors.options import (
    check_num_labels,
    invalid_config,
    invalid_input,
    num_threads,
    read_labels,
    read_options,
    unsupported_model,
)
from headway.predictors.texts import TextOptions, texts_of_array, texts_of_value
from headway.predictors.values import Scores, ValueBridge, ValueOptions
from headway_wire import Infer, InferPredictor, Loading, Outputs, Signature, TensorSpec
from headway_wire.predictor import Report
from headway_wire.tensors import NUMPY_NAMES

_DATATYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_PROBABILITIES = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")

SESSION: Mapping[str, str] = {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"}
"""Threads wait actively for the next operator of a run, which sleeping ones would be late for, and sleep between runs,
when others need the cores."""


class OnnxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model of the framework onnx."""

    type: str = "tensor"
    """The model's: image-classification, text-classification, tensor, ..."""
    file: str = ""
    """Where the source is a folder; "": model.onnx, or the only one there is."""
    providers: list[str] = []
    """ONNX Runtime's execution providers, the first that can; empty: CUDA where it is there, else the CPU."""
    threads: int | None = None
    """null: the cores that the process may use."""
    optimization: Literal["all", "extended", "basic", "none"] = "all"
    """Of the graph, as it is loaded."""
    session: dict[str, str] = {}
    """Entries of ONNX Runtime's session configuration, over those of SESSION."""
    image: ImageOptions | None = None
    """How images become the input."""
    text: TextOptions | None = None
    """How texts become input_ids, attention_mask and token_type_ids. A model of strings takes texts without."""
    scores: Scores = "none"
    """What is done to the output that answers a value: softmax or sigmoid, where the model gives logits."""
    labels: list[str] | str | None = None
    """Names of classes, or a file of them in the folder: a line each, or JSON."""
    output: str = ""
    """The output that answers a value; "": the first, or the probabilities."""


class OnnxPredictor(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> Signature:
        """Opens the session and runs it once where its shapes tell how. Raises PredictorError."""
        wanted = read_options(options, OnnxOptions)
        path = _find_file(Path(source), wanted.file)
        report(Loading(phase="read"))
        self._session = _open_session(path, wanted)
        self._inputs = [_spec_of(value, "input") for value in self._session.get_inputs()]
        self._outputs = [_spec_of(value, "output") for value in self._session.get_outputs()]
        self._names = [spec.name for spec in self._outputs]
        self._maps = {it.name for it in self._session.get_outputs() if it.type in _PROBABILITIES}
        self._strings = {spec.name for spec in self._inputs if spec.datatype == "BYTES"}
        report(Loading(phase="warm"))
        warm = self._warm_up(1)
        folder = Path(source) if Path(source).is_dir() else path.parent
        labels = read_labels(wanted.labels, folder) or self._read_map_labels(warm)
        self._bridge = self._make_bridge(wanted, labels, folder)
        check_num_labels(labels, self._num_classes(wanted, warm, labels))
        return Signature(
            task=wanted.type,
            platform="onnxruntime_onnx",
            inputs=self._inputs,
            outputs=self._outputs,
            labels=labels,
            can_batch=self._can_batch(warm),
            facts={
                "providers": self._session.get_providers(),
                "threads": num_threads(wanted.threads),
                "is_warm": warm is not None,
            },
        )

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """See InferPredictor."""
        if self._strings:
            encode, run = self._bridge.encode, self._run
            return run_batch(requests, self._prepare, lambda arrays: run(encode(arrays)), self._bridge.answer)
        return self._bridge.run(requests, self._run)

    def close(self) -> None:
        """Lets go of the session."""
        self._session = None

    def _make_bridge(self, wanted: OnnxOptions, labels: Sequence[str] | None, folder: Path) -> ValueBridge:
        output = wanted.output or next(iter(self._maps), "")
        values = ValueOptions(image=wanted.image, text=wanted.text, scores=wanted.scores, output=output)
        return ValueBridge(values, self._inputs, self._outputs, labels, folder)

    def _prepare(self, request: Infer) -> Arrays:
        if not request.tensors and len(self._inputs) == 1 and self._strings:
            return {self._inputs[0].name: _strings_of(request.value, self._inputs[0])}
        return self._bridge.prepare(request)

    def _run(self, arrays: Arrays) -> Arrays:
        for name in self._strings & arrays.keys():
            arrays[name] = _to_str(arrays[name], name)
        try:
            results = self._session.run(self._names, arrays)
        except Exception as error:
            if type(error).__name__ != "InvalidArgument":
                raise
            raise invalid_input(f"the model refused the inputs: {_words(error)}", "inputs") from error
        return {
            spec.name: _from_maps(result) if spec.name in self._maps else np.asarray(result)
            for spec, result in zip(self._outputs, results, strict=True)
        }

    def _warm_up(self, num_items: int) -> Sequence[Any] | None:
        """The outputs of zeros; None: the model does not take these."""
        try:
            return list(self._session.run(None, {spec.name: _zeros(spec, num_items) for spec in self._inputs}))
        except Exception:
            return None  # zeros are a guess: what the model takes may be something else

    def _can_batch(self, one: Sequence[Any] | None) -> bool:
        """Whether the first axis of every input is free, that of every output follows it, and no other one does: an
        output of items by items is about all that are computed together."""
        if one is None or not all(spec.shape and spec.shape[0] == -1 for spec in self._inputs):
            return False
        two = self._warm_up(2)
        return two is not None and all(
            np.shape(it)[:1] == (1,) and np.shape(other) == (2, *np.shape(it)[1:])
            for it, other in zip(one, two, strict=True)
        )

    def _read_map_labels(self, warm: Sequence[Any] | None) -> list[str] | None:
        """The keys of probabilities."""
        for spec, result in zip(self._outputs, warm or [], strict=False):
            if spec.name in self._maps and result:
                return [str(key) for key in result[0]]
        return None

    def _num_classes(self, wanted: OnnxOptions, warm: Sequence[Any] | None, labels: Sequence[str] | None) -> int:
        """Of the output that answers a value, where it is known; else as many as there are labels."""
        spec = self._bridge.answering(self._outputs)
        count = spec.shape[-1] if spec.shape else -1
        if count < 0 and warm is not None and spec.name not in self._maps:
            shape = np.shape(warm[self._outputs.index(spec)])
            count = shape[-1] if shape else -1
        return len(labels or []) if count < 0 else count


def _find_file(source: Path, file: str) -> Path:
    if source.is_file():
        return source
    if not source.is_dir():
        raise unsupported_model(f"there is no file or folder {source}")
    found = [source / file] if file else [source / "model.onnx"]
    if not file and not found[0].is_file():
        found = sorted(source.glob("*.onnx"))
    if len(found) != 1 or not found[0].is_file():
        names = ", ".join(path.name for path in found) or "none"
        raise invalid_config(f"{source} has no single ONNX file ({names}): name one by the option `file`", "file")
    return found[0]


def _open_session(path: Path, wanted: OnnxOptions) -> Any:
    """Raises PredictorError with ONNX Runtime's words."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = num_threads(wanted.threads)
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    kind = "ORT_DISABLE_ALL" if wanted.optimization == "none" else f"ORT_ENABLE_{wanted.optimization.upper()}"
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, kind)
    for name, value in {**SESSION, **wanted.session}.items():
        settings.add_session_config_entry(name, value)
    providers = _choose_providers(wanted.providers, ort.get_available_providers())
    try:
        return ort.InferenceSession(str(path), settings, providers=providers)
    except Exception as error:
        # Each fault of a file has a class of its own there, below Exception.
        if "locale" not in str(error):
            raise unsupported_model(f"ONNX Runtime can not load {path}: {_words(error)}") from error
    return ort.InferenceSession(_with_plain_locale(path), settings, providers=providers)


def _with_plain_locale(path: Path) -> bytes:
    """The model with its StringNormalizers in the locale C.UTF-8, which every machine has; their default is en_US."""
    try:
        import onnx
    except ImportError as error:
        raise unsupported_model(
            f"{path} normalises strings in a locale that this machine has not: install the locale (en_US.UTF-8), or"
            " onnx (pip install onnx), which makes it C.UTF-8"
        ) from error
    model = onnx.load(str(path))
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            kept = [attribute for attribute in node.attribute if attribute.name != "locale"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("locale", "C.UTF-8")])
    return bytes(model.SerializeToString())


def _choose_providers(wanted: Sequence[str], available: Sequence[str]) -> list[str]:
    for name in wanted:
        if name not in available:
            raise invalid_config(
                f"the provider {name[:100]!r} is not in this ONNX Runtime; it has {', '.join(available)}", "providers"
            )
    return list(wanted) or [name for name in _PROVIDERS if name in available]


def _spec_of(value: Any, what: str) -> TensorSpec:
    """Of a session's input or output. Raises PredictorError for what is no tensor."""
    if what == "output" and value.type in _PROBABILITIES:
        return TensorSpec(name=value.name, datatype="FP32", shape=[-1, -1])
    datatype = _DATATYPES.get(value.type)
    if datatype is None:
        raise unsupported_model(f"the {what} {value.name} is a {value.type}; it must be a tensor of a known type")
    return TensorSpec(name=value.name, datatype=datatype, shape=[_size(size) for size in value.shape or []])


def _size(size: Any) -> int:
    return size if isinstance(size, int) and size > 0 else -1


def _zeros(spec: TensorSpec, num_items: int) -> np.ndarray:
    """Of an input, with so many items along a first axis that is free, and one along every other."""
    shape = [(num_items if axis == 0 else 1) if size < 0 else size for axis, size in enumerate(spec.shape)]
    if spec.datatype == "BYTES":
        return np.full(shape, "", dtype=object)
    return np.zeros(shape, dtype=NUMPY_NAMES[spec.datatype])


def _strings_of(value: Any, spec: TensorSpec) -> np.ndarray:
    """Texts, each an item of the first axis. Raises PredictorError for other values."""
    texts = np.array(texts_of_value(value), dtype=object)
    return texts.reshape(len(texts), *[1] * (len(spec.shape) - 1))


def _to_str(array: np.ndarray, name: str) -> np.ndarray:
    """Elements of BYTES as text, which is what ONNX Runtime takes."""
    if array.size and isinstance(array.reshape(-1)[0], str):
        return array
    texts = np.empty(array.size, dtype=object)
    texts[:] = texts_of_array(array, name)
    return texts.reshape(array.shape)


def _from_maps(rows: Sequence[Mapping[Any, float]]) -> np.ndarray:
    """[num_rows, num_classes] of FP32, in the order of the first row's keys, which all rows have."""
    keys = list(rows[0]) if rows else []
    return np.array([[row[key] for key in keys] for row in rows], dtype=np.float32).reshape(len(rows), len(keys))


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
