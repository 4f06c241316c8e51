"""What a model's framework means: what runs it, and where. One row a framework.

engine    a process that speaks tokens (Submit, Step): headway.worker.serve around an engine, in this interpreter
tokens    the same by headway_wire.serve, in any interpreter: vLLM embedded
infer     a process that speaks tensors and values (Infer, Outputs): headway_wire.serve around a predictor
remote    an object in the server that calls another server
ensemble  an object in the server that asks other models of it

Of some there are several ways to run a model (run_of): vLLM's engine in a child, or its server, started here or
elsewhere; transformers' generation is an engine, its other types are not. Each way is a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from headway.config import ModelConfig, ModelType
from headway.errors import InvalidConfig

Kind = Literal["engine", "tokens", "infer", "remote", "ensemble"]
VllmMode = Literal["url", "launch", "embedded"]

PROCESS_BYTES = 60 << 20
"""What a worker takes before it loads anything."""
VLLM_BYTES = 700 << 20
"""What a process of vLLM's takes beside its model, measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How models of it are run."""

    kind: Kind
    predictor: str
    """module:Class; of a remote one, and of an ensemble, the client's class."""
    default_type: ModelType
    extra: str | None = None
    """headway[extra] installs what it needs; None: nothing more."""
    speaks_text: bool = False
    """A model is asked by Service.generate or embed; else it takes tensors and values (infer)."""
    is_elsewhere: bool = False
    """Another server has it that we did not start: nothing of it is here."""
    reads_weights: bool = False
    """Headway reads its checkpoint, weights included, and plans its memory."""
    loads_hub_folders: bool = False
    """Of kind infer: what its source names may be a folder of a hub's."""
    process_bytes: int = PROCESS_BYTES
    """What its processes take beside what they load."""
    kv_cache_option: str | None = None
    """The option that says how many GiB of keys and values it has beside its files."""
    imports: tuple[str, ...] = ()
    """Modules that take a cold model's process the longest: one that is started ahead imports them, but for those of
    headway in another interpreter. Empty: none is started ahead."""
    by_type: Mapping[ModelType, "Framework"] = field(default_factory=dict)
    """How models of some types are run, where that is another way."""
    by_mode: Mapping[VllmMode, "Framework"] = field(default_factory=dict)
    """The same, by vllm_mode()."""

    @property
    def speaks_tokens(self) -> bool:
        """Its prompts are tokenised here, so its text is opened here."""
        return self.kind in ("engine", "tokens")

    @property
    def is_foreign_engine(self) -> bool:
        """It speaks as Headway's engine does, and something else reads and computes its weights."""
        return self.kind == "engine" and not self.reads_weights


_VLLM_CLIENT = "headway.service.remote.vllm:VllmClient"
_TEXTS_AND_IMAGES = ("tokenizers", "PIL.Image")

FRAMEWORKS: Mapping[str, Framework] = {
    "headway": Framework(
        kind="engine",
        predictor=ModelConfig(source="").predictor,
        default_type="text-generation",
        speaks_text=True,
        reads_weights=True,
        imports=("headway.predictors.headway", "headway.predictors.encoder"),
    ),
    "python": Framework(
        kind="infer",
        predictor="headway.predictors.python:PythonPredictor",
        default_type="python",
        imports=("headway.predictors.python",),
    ),
    "onnx": Framework(
        kind="infer",
        predictor="headway.predictors.onnx:OnnxPredictor",
        default_type="tensor",
        extra="onnx",
        imports=("headway.predictors.onnx", "onnxruntime", *_TEXTS_AND_IMAGES),
    ),
    "torch": Framework(
        kind="infer",
        predictor="headway.predictors.torch:TorchPredictor",
        default_type="tensor",
        extra="torch",
        imports=("headway.predictors.torch", "torch", *_TEXTS_AND_IMAGES),
    ),
    "torchvision": Framework(
        kind="infer",
        predictor="headway.predictors.torchvision:TorchvisionPredictor",
        default_type="image-classification",
        extra="vision",
        imports=("headway.predictors.torchvision", "torchvision", "PIL.Image"),
    ),
    "transformers": Framework(
        kind="infer",
        predictor="headway.predictors.transformers:TransformersPredictor",
        default_type="text-classification",
        extra="transformers",
        loads_hub_folders=True,
        imports=(
            "headway.predictors.transformers",
            "torch",
            "transformers.models.auto.modeling_auto",
            "transformers.models.auto.tokenization_auto",
        ),
        by_type={
            "text-generation": Framework(
                kind="engine",
                predictor="headway.predictors.transformers_generation:TransformersGenerator",
                default_type="text-generation",
                extra="transformers",
                speaks_text=True,
                imports=(
                    "headway.predictors.transformers_generation",
                    "torch",
                    "transformers.models.auto.modeling_auto",
                ),
            )
        },
    ),
    "tensorflow": Framework(
        kind="infer",
        predictor="headway.predictors.tensorflow:TensorflowPredictor",
        default_type="tensor",
        imports=("tensorflow", *_TEXTS_AND_IMAGES),
    ),
    "vllm": Framework(
        kind="tokens",
        predictor="headway.predictors.vllm:VllmPredictor",
        default_type="text-generation",
        extra="vllm",
        speaks_text=True,
        process_bytes=VLLM_BYTES,
        kv_cache_option="kv_cache_gib",
        by_mode={
            "url": Framework(
                kind="remote",
                predictor=_VLLM_CLIENT,
                default_type="text-generation",
                speaks_text=True,
                is_elsewhere=True,
            ),
            "launch": Framework(
                kind="remote",
                predictor=_VLLM_CLIENT,
                default_type="text-generation",
                extra="vllm",
                speaks_text=True,
                process_bytes=2 * VLLM_BYTES,  # its server, and its engine
                kv_cache_option="kv_cache_gib",
            ),
        },
    ),
    "triton": Framework(
        kind="remote",
        predictor="headway.service.remote.triton:TritonClient",
        default_type="tensor",
        is_elsewhere=True,
    ),
    "openai": Framework(
        kind="remote",
        predictor="headway.service.remote.openai:OpenAIClient",
        default_type="text-generation",
        speaks_text=True,
        is_elsewhere=True,
    ),
    "ensemble": Framework(kind="ensemble", predictor="headway.service.ensemble:EnsembleClient", default_type="tensor"),
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


def run_of(model: ModelConfig) -> Framework:
    """What runs this very model. Raises InvalidConfig for a framework that there is not."""
    row = framework_of(model.framework)
    if row.by_mode:
        return row.by_mode.get(vllm_mode(model), row)
    return row.by_type.get(model.type, row)


def speaks_text(framework: str, model_type: ModelType) -> bool:
    """Whether a model is asked by Service.generate or embed; else it takes tensors and values (infer).

    Raises InvalidConfig as framework_of().
    """
    row = framework_of(framework)
    return row.by_type.get(model_type, row).speaks_text


def vllm_mode(model: ModelConfig) -> VllmMode:
    """How a model of vLLM's is run: as its options say, else by URL where there is one, else launched."""
    mode = model.options.get("mode")
    for known in get_args(VllmMode):
        if mode == known:
            return cast(VllmMode, known)
    return "url" if "://" in model.source or "url" in model.options else "launch"


def is_elsewhere(model: ModelConfig) -> bool:
    """Whether another server has it that we did not start. Raises InvalidConfig as run_of()."""
    return run_of(model).is_elsewhere
