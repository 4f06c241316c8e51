"""TransformersPredictor: models of transformers that classify: texts, their tokens, or texts by labels that are asked.

`source` is a folder as save_pretrained() writes it: config.json, a tokenizer, safetensors. Nothing is fetched, and no
code of a model's repository is run. What the tasks take and give is in transformers_tasks.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.predictors.arrays import tensor_outputs, tensors_of_request
from headway.predictors.options import invalid_config, read_options
from headway.predictors.texts import texts_of_array
from headway.predictors.transformers_model import TransformersOptions, load_model
from headway.predictors.transformers_tasks import TASKS, Task
from headway_wire import Infer, InferPredictor, Loading, Outputs, PredictorError, Signature
from headway_wire.predictor import Report

_ELSEWHERE = {
    "embedding": "the framework headway runs encoders",
    "image-classification": "give the model to the framework torch, torchvision or onnx",
}
"""What transformers could do and this does not: where it is done."""


class TransformersPredictor(InferPredictor):
    """See the module."""

    def load(self, source: str, options: dict[str, Any], report: Report) -> Signature:
        """Loads the model and answers once. Raises PredictorError."""
        wanted = read_options(options, TransformersOptions)
        make = TASKS.get(wanted.type)
        if make is None:
            advice = _ELSEWHERE.get(wanted.type, "it must be one of " + ", ".join([*TASKS, "text-generation"]))
            raise invalid_config(f"the type of a transformers model is {wanted.type!r}: {advice}", "type")
        report(Loading(phase="read"))
        model = load_model(Path(source), make.auto_class, wanted)
        self._task: Task = make(model, wanted)
        report(Loading(phase="warm"))
        self._task.compute(self._task.items(["warm"], {"candidate_labels": ["up"]}))
        inputs, outputs = self._task.specs()
        return Signature(
            task=wanted.type,
            platform="pytorch_transformers",
            inputs=inputs,
            outputs=outputs,
            labels=self._task.labels,
            can_batch=True,
            facts=model.facts(),
        )

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """See InferPredictor. The texts of all requests are computed together."""
        found: list[list[Any] | PredictorError] = [self._items(request) for request in requests]
        results = iter(self._task.compute([item for items in found if isinstance(items, list) for item in items]))
        answers = []
        for request, items in zip(requests, found, strict=True):
            if isinstance(items, PredictorError):
                answers.append(Outputs(request_id=request.request_id, error=items.error))
            else:
                answers.append(self._answer(request, items, [next(results) for _ in items]))
        return answers

    def _items(self, request: Infer) -> list[Any] | PredictorError:
        try:
            value = request.value
            if request.tensors:
                value = texts_of_array(tensors_of_request(request)["text"], "text")
            return self._task.items(value, request.parameters)
        except PredictorError as error:
            return error

    def _answer(self, request: Infer, items: Sequence[Any], rows: Sequence[Any]) -> Outputs:
        if request.tensors:
            return tensor_outputs(request, self._task.arrays(rows))
        return Outputs(request_id=request.request_id, value=list(rows), labels=self._task.labels_of(items))
