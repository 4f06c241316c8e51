"""What a model's framework means: what runs it, and where. One row a framework.

engine    a process that speaks tokens (Submit, Step): headway.worker.serve around an engine, in this interpreter
tokens    the same by headway_wire.serve, in any interpreter: vLLM embedded
infer     a process that speaks tensors and values (Infer, Outputs): headway_wire.serve around a predictor
remote    an object in the server that calls another server
ensemble  an object in the server that asks other models of it

vLLM is run in two ways (run_of): its server, started here or elsewhere, or its engine in a child.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from headway.config import ModelConfig, ModelType
from headway.errors import InvalidConfig

Kind = Literal["engine", "tokens", "infer", "remote", "ensemble"]
VllmMode = Literal["url", "launch", "embedded"]


@dataclass(frozen=True, slots=True)
class Framework:
    """How models of it are run."""

    kind: Kind
    predictor: str
    """module:Class; of a remote one, and of an ensemble, the client's class."""
    default_type: ModelType
    extra: str | None = None
    """headway[extra] installs what it needs; None: nothing more."""

    @property
    def speaks_tokens(self) -> bool:
        """Its prompts are tokenised here, so its text is opened here."""
        return self.kind in ("engine", "tokens")


FRAMEWORKS: Mapping[str, Framework] = {
    "headway": Framework("engine", ModelConfig(source="").predictor, "text-generation"),
    "python": Framework("infer", "headway.predictors.python:PythonPredictor", "python"),
    "onnx": Framework("infer", "headway.predictors.onnx:OnnxPredictor", "tensor", "onnx"),
    "torch": Framework("infer", "headway.predictors.torch:TorchPredictor", "tensor", "torch"),
    "torchvision": Framework(
        "infer", "headway.predictors.torchvision:TorchvisionPredictor", "image-classification", "vision"
    ),
    "transformers": Framework(
        "infer", "headway.predictors.transformers:TransformersPredictor", "text-classification", "transformers"
    ),
    "tensorflow": Framework("infer", "headway.predictors.tensorflow:TensorflowPredictor", "tensor"),
    "vllm": Framework("tokens", "headway.predictors.vllm:VllmPredictor", "text-generation", "vllm"),
    "triton": Framework("remote", "headway.service.remote.triton:TritonClient", "tensor"),
    "openai": Framework("remote", "headway.service.remote.openai:OpenAIClient", "text-generation"),
    "ensemble": Framework("ensemble", "headway.service.ensemble:EnsembleClient", "tensor"),
}
"""By the name in a catalog."""


def framework_of(name: str) -> Framework:
    """Raises InvalidConfig that lists those there are."""
    found = FRAMEWORKS.get(name)
    if found is None:
        raise InvalidConfig(
            f"framework is {name[:100]!r}; it must be one of {', '.join(FRAMEWORKS)}", param="framework"
        )
    return found


TRANSFORMERS_GENERATOR = Framework(
    "engine", "headway.predictors.transformers_generation:TransformersGenerator", "text-generation", "transformers"
)
VLLM_SERVER = Framework("remote", "headway.service.remote.vllm:VllmClient", "text-generation", "vllm")


def run_of(model: ModelConfig) -> Framework:
    """What runs this very model. Raises InvalidConfig for a framework that there is not."""
    if model.framework == "vllm" and vllm_mode(model) != "embedded":
        return VLLM_SERVER
    if model.framework == "transformers" and model.type == "text-generation":
        return TRANSFORMERS_GENERATOR
    return framework_of(model.framework)


def speaks_text(framework: str, model_type: ModelType) -> bool:
    """Whether a model is asked by Service.generate or embed; else it takes tensors and values (infer).

    Raises InvalidConfig as framework_of().
    """
    if framework == "transformers":
        return model_type == "text-generation"
    return framework_of(framework).speaks_tokens or framework == "openai"


def vllm_mode(model: ModelConfig) -> VllmMode:
    """How a model of vLLM's is run: as its options say, else by URL where there is one, else launched."""
    mode = model.options.get("mode")
    for known in get_args(VllmMode):
        if mode == known:
            return cast(VllmMode, known)
    return "url" if "://" in model.source or "url" in model.options else "launch"


def is_elsewhere(model: ModelConfig) -> bool:
    """Whether another server has it that we did not start: nothing of it is here. Raises InvalidConfig as run_of()."""
    is_launched = model.framework == "vllm" and vllm_mode(model) == "launch"
    return run_of(model).kind == "remote" and not is_launched
