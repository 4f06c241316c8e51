"""What runs a model that is no language model: the contract between headway_wire.serve and a framework's file.

A predictor's module imports the standard library, msgspec, numpy, headway_wire and its framework, and nothing of
Headway: it runs in interpreters where Headway is not installed. The class is made without arguments, and one thread
calls it.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence

import msgspec

from headway_wire.messages import Error, Infer, Loading, Outputs

Report = Callable[[Loading], None]
"""Called during a load at each phase: fetch, read, build, warm."""


class PredictorError(Exception):
    """An error for the caller, by its name in Headway's error tree (InvalidRequest, UnsupportedModel, ...)."""

    def __init__(self, kind: str, message: str, param: Optional[str] = None) -> None:
        super().__init__(message)
        self.error = Error(kind=kind, message=message, param=param)


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named input or output, as the Open Inference Protocol's model metadata tell it."""

    name: str
    datatype: str
    """Of the protocol, as in messages.Tensor."""
    shape: List[int]
    """-1: any. With batching the first is the batch's, -1."""
    is_optional: bool = False


class Signature(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a loaded model takes and gives; travels as Ready.info."""

    task: str
    """The model's type: text-classification, image-classification, embedding, tensor, python, ..."""
    platform: str
    """For metadata: onnxruntime_onnx, pytorch_torch, python, ..."""
    inputs: List[TensorSpec] = []
    """Empty: it takes values alone."""
    outputs: List[TensorSpec] = []
    takes_values: bool = True
    """Infer.value: what /predict was given, which the predictor turns into its inputs itself."""
    labels: Optional[List[str]] = None
    can_batch: bool = False
    """Requests can be computed together: the first axis of each tensor is the batch's."""
    facts: Dict[str, Any] = {}
    """More for people: device, threads, parameters."""


class InferPredictor:
    """The base of predictors; each overrides load and infer."""

    def load(self, source: str, options: Dict[str, Any], report: Report) -> Signature:
        """Loads and warms up; blocks. Raises PredictorError; anything else is told as a failed load with its words."""
        raise NotImplementedError

    def infer(self, requests: Sequence[Infer]) -> Sequence[Outputs]:
        """An answer to each request, in order; Outputs.error for one alone. What is raised fails them all.

        More than one only if the signature says can_batch; all have inputs of the same names, datatypes and shapes but
        for the first axis, or all have values; all have the same parameters and outputs. A batch that raises is
        computed again, each request alone.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Frees what it holds outside the process; called once, last."""
