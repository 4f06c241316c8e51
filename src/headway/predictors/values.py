"""What /predict gives and gets, for models of arrays: a value into the model's inputs, its outputs into a value.

Images and texts are prepared as the options say; nested lists of numbers are the model's one input as they are. A
classifier's answer is a row of scores for each item, and its labels.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headway.predictors.arrays import (
    Arrays,
    array_of_value,
    run_batch,
    run_joined,
    sigmoid,
    softmax,
    tensor_outputs,
    tensors_of_request,
)
from headway.predictors.images import ImageOptions, images_of_value, prepare_images
from headway.predictors.options import invalid_config, invalid_input
from headway.predictors.texts import COLUMNS, TextEncoder, TextOptions, texts_of_value
from headway_wire import Infer, Outputs, TensorSpec

Scores = Literal["softmax", "sigmoid", "none"]
TEXTS = "\0texts"
"""The name of texts among a request's arrays until they are token ids: those of a batch are padded together."""


class ValueOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How values and arrays are turned into each other. The options of predictors have these fields too."""

    image: ImageOptions | None = None
    """Images are taken, and prepared so."""
    text: TextOptions | None = None
    """Texts are taken, and prepared so; inputs of these names are filled: input_ids, attention_mask, token_type_ids."""
    scores: Scores = "none"
    """What is done to the output of a classifier before it is the answer to a value."""
    output: str = ""
    """The output that answers a value; "": the first."""


class ValueBridge:
    """Turns requests into arrays and arrays into answers, for one model."""

    def __init__(
        self,
        options: ValueOptions,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        labels: Sequence[str] | None,
        folder: Path,
    ) -> None:
        """Raises PredictorError for options that do not fit the model."""
        self._options = options
        self._inputs = list(inputs)
        self._bf16 = {spec.name for spec in outputs if spec.datatype == "BF16"}
        self._labels = None if labels is None else list(labels)
        names = [spec.name for spec in outputs]
        if options.output and options.output not in names:
            raise invalid_config(f"output is {options.output!r}; the model has {', '.join(names)}", "output")
        self._output = options.output or names[0]
        if options.image is not None:
            _check_image(options.image, inputs)
        self._encoder = None if options.text is None else TextEncoder(folder, options.text)
        self._columns = {it.name: _INTEGERS.get(it.datatype, np.int64) for it in inputs if it.name in COLUMNS}

    def run(self, requests: Sequence[Infer], compute: Callable[[Arrays], Arrays]) -> list[Outputs]:
        """An answer to each request, in order, by `compute`, which is given the model's inputs. Raises what it does."""
        return run_joined(requests, compute, self._bf16) or run_batch(
            requests, self.prepare, lambda arrays: compute(self.encode(arrays)), self.answer
        )

    def prepare(self, request: Infer) -> Arrays:
        """The request's inputs, by name. Raises PredictorError for what the model does not take."""
        if request.tensors:
            return tensors_of_request(request)
        images = images_of_value(request.value)
        if images is not None:
            return self._prepare_images(images)
        if self._encoder is not None and _has_texts(request.value):
            return {TEXTS: np.array(texts_of_value(request.value), dtype=object)}
        if len(self._inputs) != 1:
            names = ", ".join(spec.name for spec in self._inputs)
            raise invalid_input(
                f"the model has {len(self._inputs)} inputs; give tensors by name: {names}", "input_data"
            )
        return {self._inputs[0].name: array_of_value(request.value, self._inputs[0])}

    def encode(self, arrays: Arrays) -> Arrays:
        """Texts as token ids, those that the model has an input for; else the arrays as they are."""
        texts = arrays.get(TEXTS)
        if texts is None or self._encoder is None:
            return arrays
        columns = self._encoder.encode(texts.tolist(), self._columns)
        return {name: columns[name].astype(dtype, copy=False) for name, dtype in self._columns.items()}

    def answer(self, request: Infer, arrays: Mapping[str, np.ndarray]) -> Outputs:
        """Tensors to tensors, a value to a value"""
        if request.tensors:
            return tensor_outputs(request, arrays, self._bf16)
        scores = scores_of(arrays[self._output], self._options.scores)
        return Outputs(request_id=request.request_id, value=to_value(scores), labels=self._labels)

    def answering(self, outputs: Sequence[TensorSpec]) -> TensorSpec:
        """The output that answers a value."""
        return next(spec for spec in outputs if spec.name == self._output)

    def _prepare_images(self, images: Sequence[bytes]) -> Arrays:
        if self._options.image is None:
            raise invalid_input("the model takes no images: its options have no `image`", "input_data")
        return {self._inputs[0].name: prepare_images(images, self._options.image)}


def _check_image(image: ImageOptions, inputs: Sequence[TensorSpec]) -> None:
    """Raises PredictorError where images are made to another shape than the first input has."""
    image.check()
    made, taken = [-1, *image.shape], inputs[0].shape
    fits = len(made) == len(taken) and all(-1 in pair or pair[0] == pair[1] for pair in zip(made, taken, strict=True))
    if not fits:
        raise invalid_config(
            f"image makes {made} ({image.layout}), and the input {inputs[0].name} takes {taken}: change size, layout or"
            " channels",
            "image",
        )


_INTEGERS: Mapping[str, type[np.generic]] = {"INT32": np.int32, "INT64": np.int64}


def scores_of(array: np.ndarray, rule: Scores) -> np.ndarray:
    """Logits as the probabilities of classes, over the last axis."""
    if rule == "none":
        return array
    return softmax(array) if rule == "softmax" else sigmoid(array)


def to_value(array: np.ndarray) -> Any:
    """Nested lists; texts of BYTES."""
    if array.dtype.kind in "OS":
        return np.vectorize(_to_text, otypes=[object])(array).tolist() if array.size else array.tolist()
    return array.tolist()


def _to_text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def _has_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], str))
