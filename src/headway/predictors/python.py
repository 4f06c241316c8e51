"""PythonPredictor: a user's own class, in a file: load(), and predict() of a value or predict_tensors() of arrays.

    class Model:
        def load(self, options): ...              # optional; the options of the catalog that are not named below
        def predict(self, value): ...             # of /predict: JSON's types, or an image's bytes; gives the same
        def predict_batch(self, values): ...      # of several at once, a list of as many; one of the two is enough
        def predict_tensors(self, arrays): ...    # {name: numpy array} to the same; `inputs` and `outputs` say which:
        inputs = {"x": ("FP32", [-1, 4])}         # datatypes of the Open Inference Protocol; -1: any size
        outputs = {"y": ("FP32", [-1, 2])}
        can_batch = True                          # arrays of several requests are joined along their first axes
        labels = ["no", "yes"]                    # of a classifier

A method that has an argument `parameters` gets the request's. A ValueError is the caller's fault, anything else that is
raised the model's; the caller is told its class and words, and the log the rest.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from headway_wire import Infer, InferPredictor, Loading, Outputs, PredictorError, Signature, TensorSpec

_METHODS = ("predict", "predict_batch", "predict_tensors")
_Call = Callable[[Any, Mapping[str, Any]], Any]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class PythonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Those that are not handed to load()."""

    file: str = "model.py"
    """Where the source is a folder: the module in it."""
    class_name: str = msgspec.field(default="", name="class")
    """"": the only class of the file that has one of the methods."""
    type: str = "python"
    threads: int | None = None
    """Of libraries that ask OpenMP's variables; None: the cores that the process may use."""


class PythonPredictor(InferPredictor):
    """One object of the user's class."""

    def __init__(self) -> None:
        self._model: Any = None
        self._calls: dict[str, _Call] = {}
        self._signature = Signature(task="python", platform="python")

    def load(self, source: str, options: dict[str, Any], report: Callable[[Loading], None]) -> Signature:
        """Imports the file, makes the object and calls its load(). Raises PredictorError, and what load() raises."""
        report(Loading(phase="read"))
        wanted = _read_options(options)
        _set_threads(wanted.threads)
        path = _module_path(source, wanted.file)
        kind = _find_class(_import_file(path), wanted.class_name, path)
        report(Loading(phase="build"))
        own = {name: value for name, value in options.items() if name not in PythonOptions.__struct_encode_fields__}
        self._model = kind()
        if hasattr(self._model, "load"):
            self._model.load(*([own] if _takes(self._model.load, 1) else []))
        self._calls = {name: _taking_parameters(getattr(self._model, name)) for name in _METHODS if hasattr(kind, name)}
        self._signature = _signature_of(self._model, wanted.type, path)
        return self._signature

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """Answers values by predict or predict_batch, tensors by predict_tensors. Raises what the model does."""
        if requests[0].tensors:
            return self._infer_tensors(requests)
        values = self._predict(requests)
        labels = self._signature.labels
        return [
            Outputs(request_id=request.request_id, value=plain(value), labels=labels)
            for request, value in zip(requests, values, strict=True)
        ]

    def close(self) -> None:
        """Calls the model's close(), if it has one."""
        if hasattr(self._model, "close"):
            self._model.close()

    def _predict(self, requests: Sequence[Infer]) -> Sequence[Any]:
        parameters = requests[0].parameters
        if len(requests) == 1 and "predict" in self._calls:
            return [self._call("predict", requests[0].value, parameters)]
        answers = self._call("predict_batch", [request.value for request in requests], parameters)
        if len(answers) != len(requests):
            raise PredictorError(
                "InferenceFailed", f"predict_batch gave {len(answers)} answers to {len(requests)} values"
            )
        return list(answers)

    def _call(self, method: str, asked: Any, parameters: Mapping[str, Any]) -> Any:
        """A ValueError of the model's is about what it was asked; what is wrong with its answer is not."""
        try:
            return self._calls[method](asked, parameters)
        except ValueError as error:
            raise PredictorError("InvalidRequest", f"the model refused the input: {_describe(error)}") from error

    def _infer_tensors(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        from headway.predictors.arrays import compute_together, run_joined, tensor_outputs, tensors_of_request

        def compute(arrays: dict[str, Any]) -> dict[str, Any]:
            return _check_arrays(self._call("predict_tensors", arrays, requests[0].parameters))

        bf16 = {spec.name for spec in self._signature.outputs if spec.datatype == "BF16"}
        joins = getattr(self._model, "can_batch", False)
        joined = run_joined(requests, compute, bf16) if joins else None
        if joined is not None:
            return joined
        parts = [tensors_of_request(request) for request in requests]
        results = compute_together(parts, compute) if joins else [compute(part) for part in parts]
        return [tensor_outputs(request, arrays, bf16) for request, arrays in zip(requests, results, strict=True)]


def plain(value: Any) -> Any:
    """JSON's types and bytes, of whatever a model gave: arrays as lists, dataclasses and structs as maps."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_to_list, str_keys=True)


def _to_list(value: Any) -> Any:
    """numpy's, torch's and others' arrays and scalars. Raises TypeError for what has no such form."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the model's answer holds a {type(value).__name__}, which is none of JSON's types")


def _read_options(options: Mapping[str, Any]) -> PythonOptions:
    try:
        return msgspec.convert(dict(options), PythonOptions)
    except msgspec.ValidationError as error:
        raise PredictorError("InvalidConfig", f"the options do not fit: {error}") from error


def _set_threads(wanted: int | None) -> None:
    if wanted is not None and wanted < 1:
        raise PredictorError("InvalidConfig", f"threads is {wanted}; it must be 1 or more", "threads")
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(wanted or len(os.sched_getaffinity(0)))


def _module_path(source: str, file: str) -> Path:
    path = Path(source)
    path = path / file if path.is_dir() else path
    if path.suffix != ".py" or not path.is_file():
        raise PredictorError("UnsupportedModel", f"there is no Python file {path}: give a .py file, or its folder")
    return path.absolute()


def _import_file(path: Path) -> ModuleType:
    """The module; files beside it can be imported by it."""
    there = getattr(sys.modules.get(path.stem), "__file__", None)
    if there not in (None, str(path)) or path.stem in sys.builtin_module_names:
        raise PredictorError(
            "InvalidConfig",
            f"{path} has the name of a module that is in use here: give it another, as model.py",
            "file",
        )
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise PredictorError("UnsupportedModel", f"{path} can not be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickles and dataclasses look it up by its name
    spec.loader.exec_module(module)
    return module


def _find_class(module: ModuleType, name: str, path: Path) -> type[Any]:
    """Raises PredictorError that names the classes that there are."""
    found = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and any(hasattr(value, it) for it in _METHODS)
    }
    if name:
        kind = getattr(module, name, None)
        if not inspect.isclass(kind):
            raise PredictorError("InvalidConfig", f"{path} has no class {name[:100]!r}; it has: {', '.join(found)}")
        return kind
    if len(found) != 1:
        what = f"{len(found)} classes with predict ({', '.join(found)})" if found else "no class with a predict method"
        raise PredictorError("InvalidConfig", f"{path} has {what}: name one by the option `class`", "class")
    return next(iter(found.values()))


def _signature_of(model: Any, task: str, path: Path) -> Signature:
    takes_tensors = hasattr(model, "predict_tensors")
    inputs = _read_specs(model, "inputs", path)
    if takes_tensors and not inputs:
        raise PredictorError(
            "UnsupportedModel", f"{path} has predict_tensors and no `inputs`: {{name: (datatype, shape)}}"
        )
    labels = getattr(model, "labels", None)
    return Signature(
        task=task,
        platform="python",
        inputs=inputs if takes_tensors else [],
        outputs=_read_specs(model, "outputs", path) if takes_tensors else [],
        takes_values=hasattr(model, "predict") or hasattr(model, "predict_batch"),
        labels=None if labels is None else [str(label) for label in labels],
        can_batch=hasattr(model, "predict_batch") or bool(getattr(model, "can_batch", False)),
    )


def _read_specs(model: Any, attribute: str, path: Path) -> list[TensorSpec]:
    declared = getattr(model, attribute, {})
    try:
        return [
            TensorSpec(name=str(name), datatype=str(datatype), shape=[int(size) for size in shape])
            for name, (datatype, shape) in declared.items()
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise PredictorError(
            "UnsupportedModel", f"`{attribute}` of {path} is no {{name: (datatype, shape)}}: {error}"
        ) from error


def _taking_parameters(method: Callable[..., Any]) -> _Call:
    """The method with an argument more, which reaches it only if it has one of that name."""
    if "parameters" in inspect.signature(method).parameters:
        return lambda value, parameters: method(value, parameters=dict(parameters))
    return lambda value, parameters: method(value)


def _takes(method: Callable[..., Any], count: int) -> bool:
    return len(inspect.signature(method).parameters) >= count


def _check_arrays(arrays: Any) -> dict[str, Any]:
    if not isinstance(arrays, dict) or not all(hasattr(array, "dtype") for array in arrays.values()):
        raise PredictorError("InferenceFailed", "predict_tensors gave something else than {name: numpy array}")
    return arrays


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:1000]}"
