"""What the tasks of TransformersPredictor take and give.

text-classification       texts, or {"text", "text_pair"} -> a score for each of the model's labels
token-classification      texts -> the entities of each, as transformers' pipeline gives them
zero-shot-classification  texts, or {"text", "candidate_labels", ...} -> a score for each candidate, by entailment
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from headway.predictors.arrays import Arrays
from headway.predictors.options import invalid_config, invalid_input, unsupported_model
from headway.predictors.texts import texts_of_value
from headway.predictors.transformers_model import TransformersModel, TransformersOptions
from headway_wire import TensorSpec

_TEXT = TensorSpec(name="text", datatype="BYTES", shape=[-1])
_MAX_CANDIDATES = 1000


class Task(Protocol):
    """One way to ask a model. An item is one text with what is asked about it."""

    auto_class: ClassVar[str]
    labels: list[str] | None

    def __init__(self, model: TransformersModel, options: TransformersOptions) -> None: ...

    def items(self, value: Any, parameters: Mapping[str, Any]) -> list[Any]:
        """The items of a request. Raises PredictorError for what is none."""
        ...

    def compute(self, items: Sequence[Any]) -> list[Any]:
        """A result for each, of JSON's types."""
        ...

    def labels_of(self, items: Sequence[Any]) -> list[str] | None:
        """Names of the last axis of the results of these items."""
        ...

    def arrays(self, rows: Sequence[Any]) -> Arrays:
        """Results as output tensors."""
        ...

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Inputs and outputs."""
        ...


class TextClassifier:
    """A score for each label: softmax, or sigmoid where several may be right, or the number itself of a regression."""

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def __init__(self, model: TransformersModel, options: TransformersOptions) -> None:
        self._model = model
        self.labels: list[str] | None = labels_of_config(model.config)

    def items(self, value: Any, parameters: Mapping[str, Any]) -> list[tuple[str, str | None]]:
        """Texts, or pairs of texts."""
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, dict) for each in values):
            return [_read_pair(each) for each in values]
        return [(text, None) for text in texts_of_value(value)]

    def compute(self, items: Sequence[tuple[str, str | None]]) -> list[list[float]]:
        """[num_items, num_labels]"""
        logits, config = self._model.logits(items), self._model.config
        if config.problem_type == "regression":
            return logits.tolist()  # type: ignore[no-any-return]
        if config.problem_type == "multi_label_classification" or config.num_labels == 1:
            return logits.sigmoid().tolist()  # type: ignore[no-any-return]
        return logits.softmax(-1).tolist()  # type: ignore[no-any-return]

    def labels_of(self, items: Sequence[Any]) -> list[str] | None:
        """The model's."""
        return self.labels

    def arrays(self, rows: Sequence[list[float]]) -> Arrays:
        """scores, [num_items, num_labels]."""
        return {"scores": np.array(rows, dtype=np.float32)}

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """text to scores."""
        shape = [-1, int(self._model.config.num_labels)]
        return [_TEXT], [TensorSpec(name="scores", datatype="FP32", shape=shape)]


class TokenClassifier:
    """Entities of texts: transformers' own pipeline, whose rules of joining tokens are its own."""

    auto_class: ClassVar[str] = "AutoModelForTokenClassification"

    def __init__(self, model: TransformersModel, options: TransformersOptions) -> None:
        import transformers

        make: Any = transformers.TokenClassificationPipeline
        self.labels: list[str] | None = None
        self._batch_size = model.batch_size
        try:
            self._pipeline = make(
                model=model.model, tokenizer=model.tokenizer, aggregation_strategy=options.aggregation
            )
        except ValueError as error:
            raise invalid_config(f"aggregation is {options.aggregation!r}: {error}", "aggregation") from error

    def items(self, value: Any, parameters: Mapping[str, Any]) -> list[str]:
        """Texts; an empty one has no entities."""
        return texts_of_value(value)

    def compute(self, items: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Of each text its entities: entity_group (entity), score, word, start, end."""
        texts = [text for text in items if text.strip()]
        found = iter(self._pipeline(texts, batch_size=min(self._batch_size, len(texts))) if texts else [])
        return [[_plain(entity) for entity in next(found)] if text.strip() else [] for text in items]

    def labels_of(self, items: Sequence[Any]) -> list[str] | None:
        """None: each entity names its own."""
        return None

    def arrays(self, rows: Sequence[Any]) -> Arrays:
        """entities, [num_items]: JSON."""
        return {"entities": np.array([json.dumps(entities) for entities in rows], dtype=object)}

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """text to entities."""
        return [_TEXT], [TensorSpec(name="entities", datatype="BYTES", shape=[-1])]


class Candidates(NamedTuple):
    """A text and what it may be about."""

    text: str
    labels: tuple[str, ...]
    template: str
    multi_label: bool


class ZeroShotClassifier:
    """Scores of labels that the model was not trained on: how far a text entails "This example is LABEL."

    Source: Yin et al., "Benchmarking zero-shot text classification", 2019; the numbers are those of transformers'
    pipeline. One label is always scored alone, as if several may be right.
    """

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"

    def __init__(self, model: TransformersModel, options: TransformersOptions) -> None:
        """Raises PredictorError for a model without a label of entailment."""
        self._model, self._options = model, options
        self.labels: list[str] | None = options.candidate_labels or None
        names = [name.lower() for name in labels_of_config(model.config)]
        entailments = [place for place, name in enumerate(names) if name.startswith("entail")]
        if not entailments:
            raise unsupported_model(
                f"the model's labels are {', '.join(names[:10])}; zero-shot needs one of entailment"
            )
        [self._entailment, *_] = entailments
        self._contradiction = -1 if self._entailment == 0 else 0
        check_template(options.hypothesis_template)

    def items(self, value: Any, parameters: Mapping[str, Any]) -> list[Candidates]:
        """Texts, each with the request's labels: in the value, else its parameters, else the model's options."""
        asked = {**parameters}
        if isinstance(value, dict):
            asked |= {name: given for name, given in value.items() if name != "text"}
            value = value.get("text")
        labels = _read_candidates(asked.get("candidate_labels", self._options.candidate_labels))
        template = asked.get("hypothesis_template", self._options.hypothesis_template)
        check_template(template)
        multi_label = asked.get("multi_label", self._options.multi_label)
        if not isinstance(multi_label, bool):
            raise invalid_input(f"multi_label is {multi_label!r}; it must be true or false", "multi_label")
        return [Candidates(text, labels, template, multi_label) for text in texts_of_value(value)]

    def compute(self, items: Sequence[Candidates]) -> list[list[float]]:
        """Of each item a score for each of its labels, in their order."""
        logits = self._model.logits(
            [(item.text, item.template.replace("{}", label)) for item in items for label in item.labels]
        )
        results, start = [], 0
        for item in items:
            own = logits[start : start + len(item.labels)]  # [num_labels, num_classes]
            start += len(item.labels)
            if item.multi_label or len(item.labels) == 1:
                scores = own[:, [self._contradiction, self._entailment]].softmax(-1)[:, 1]
            else:
                scores = own[:, self._entailment].softmax(-1)
            results.append(scores.tolist())
        return results

    def labels_of(self, items: Sequence[Candidates]) -> list[str] | None:
        """The request's own."""
        return list(items[0].labels)

    def arrays(self, rows: Sequence[list[float]]) -> Arrays:
        """scores, [num_items, num_candidates]."""
        return {"scores": np.array(rows, dtype=np.float32)}

    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """text to scores; candidate_labels is a parameter."""
        return [_TEXT], [TensorSpec(name="scores", datatype="FP32", shape=[-1, -1])]


TASKS: Mapping[str, type[Task]] = {
    "text-classification": TextClassifier,
    "token-classification": TokenClassifier,
    "zero-shot-classification": ZeroShotClassifier,
}
"""By the model's type."""


def labels_of_config(config: Any) -> list[str]:
    """Names of the classes in their order."""
    return [str(config.id2label[place]) for place in range(config.num_labels)]


def check_template(template: Any) -> None:
    """Raises PredictorError where a label has no place in it, and so every label would get one score."""
    if not isinstance(template, str) or "{}" not in template:
        raise invalid_input(
            f"hypothesis_template is {str(template)[:100]!r}; it must have {{}} where the label goes",
            "hypothesis_template",
        )


def _read_candidates(found: Any) -> tuple[str, ...]:
    labels = [label.strip() for label in found.split(",")] if isinstance(found, str) else found
    if not isinstance(labels, list) or not all(isinstance(label, str) and label for label in labels):
        raise invalid_input("candidate_labels must be a list of texts, none of them empty", "candidate_labels")
    if not 1 <= len(labels) <= _MAX_CANDIDATES:
        raise invalid_input(
            f"there are {len(labels)} candidate_labels; give 1 to {_MAX_CANDIDATES}", "candidate_labels"
        )
    return tuple(labels)


def _read_pair(value: Any) -> tuple[str, str | None]:
    if not isinstance(value, dict):
        return texts_of_value(value)[0], None
    text, second = value.get("text"), value.get("text_pair")
    if not isinstance(text, str) or not isinstance(second, (str, type(None))) or value.keys() - {"text", "text_pair"}:
        raise invalid_input('an item is neither a text nor {"text": ..., "text_pair": ...}', "input_data")
    return text, second


def _plain(entity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in entity.items()}
