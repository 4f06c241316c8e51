"""Opens a model's files for the parent and starts its worker: what residents.py asks for, done for real.

`Loader` is the border: testing/ has another one, whose workers are scripted. The readers of checkpoints are imported
when the first one is opened.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import headway_wire as wire
from headway.config import CheckpointConfig, ModelConfig, TextConfig
from headway.core.sampling import SamplingParams, sampling_defaults
from headway.errors import InvalidConfig, InvalidRequest
from headway.service.estimate import EngineTask, ModelEstimate, estimate_model
from headway.service.events import Amounts
from headway.service.frameworks import is_elsewhere, run_of
from headway.service.generator_estimate import estimate_generator
from headway.service.infer_loading import connect_infer, find_source, infer_load_message, spare_kind
from headway.service.remote.base import make_remote
from headway.text.chat_template import ChatTemplate, make_chat_template
from headway.text.reasoning import choose_reasoning
from headway.text.source import TextSource
from headway.text.tokenizer import Tokenizer, make_tokenizer
from headway.text.tool_calls import choose_dialect
from headway.worker.client import WorkerClient
from headway.worker.constraining import OutputStyle
from headway.worker.encoder_text import EncoderText
from headway.worker.environments import find_interpreter
from headway.worker.infer_process import start_infer_process
from headway.worker.process import start_process
from headway.worker.prompt import ModelText
from headway.worker.resident import ClientSettings, ResidentClient
from headway.worker.spares import Spares

if TYPE_CHECKING:
    from headway.checkpoint.checkpoint import Checkpoint
    from headway.checkpoint.shape import ModelShape

LANGUAGE_MODEL = ModelConfig(source="").predictor
ENCODER = "headway.predictors.encoder:EncoderPredictor"
_SHARED_OPTIONS = (
    *("dtype", "device", "threads", "max_model_len", "max_num_seqs", "seed"),
    *("kv_cache_memory", "memory_limit"),
)
"""Of EngineConfig: those that mean the same where transformers runs a language model."""
_MAX_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What the parent keeps of a model: its text, if it has any, and the file's date in Unix seconds."""

    text: ModelText | None
    created: int


class Loader(Protocol):
    """How a model gets from its config to a running worker."""

    @property
    def spares(self) -> Spares | None:
        """Processes that wait without a model, which connect() takes; None: it never takes any."""
        ...

    async def resolve(self, model: ModelConfig) -> Path:
        """Where its files are, downloaded if need be. Raises HeadwayError."""
        ...

    async def open(self, model: ModelConfig, path: Path) -> OpenedModel:
        """Reads what the parent needs; not the weights. Raises HeadwayError."""
        ...

    async def estimate(self, model: ModelConfig, path: Path, budget: Amounts) -> ModelEstimate:
        """What it will take of memory. Raises OutOfMemory: alone it is too large for the budget."""
        ...

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
        """Starts what will run it, and waits for its Load. Raises OSError, InvalidConfig."""
        ...

    def load_message(self, model: ModelConfig, path: Path) -> wire.Load:
        """What the worker is to load."""
        ...


class ProcessLoader:
    """Checkpoints from disk or a hub; a process for each worker."""

    def __init__(self, checkpoint: CheckpointConfig, opened: "Mapping[str, Checkpoint] | None" = None) -> None:
        """`opened`: what is open already, by the model's source: the first load neither looks for it nor opens it."""
        self.spares: Spares = Spares()
        self._checkpoint = checkpoint
        self._opened = dict(opened or {})

    async def resolve(self, model: ModelConfig) -> Path:
        """In a thread: it may download, unpack, and check a sha256."""
        from headway.checkpoint.sources import resolve_source

        if is_elsewhere(model):
            return Path()
        if not run_of(model).speaks_tokens:
            return await asyncio.to_thread(find_source, model, self._checkpoint)
        if model.source in self._opened:
            return self._opened[model.source].path
        return await asyncio.to_thread(resolve_source, model.source, self._checkpoint, sha256=model.sha256)

    async def open(self, model: ModelConfig, path: Path) -> OpenedModel:
        """In a thread: a big vocabulary takes a tenth of a second."""
        framework = run_of(model)
        if not framework.speaks_tokens:
            return OpenedModel(text=None, created=int(time.time()))
        if framework.is_foreign_engine:
            return await asyncio.to_thread(open_text_alone, model, path)
        return await asyncio.to_thread(open_model, model, path, self._opened.pop(model.source, None))

    async def estimate(self, model: ModelConfig, path: Path, budget: Amounts) -> ModelEstimate:
        """In a thread: headers of big files take a while."""
        return await asyncio.to_thread(_estimate, model, path, budget)

    async def connect(self, model: ModelConfig, name: str, settings: ClientSettings) -> ResidentClient:
        """A process of this interpreter, or several of the model's own, or a client of another server."""
        framework = run_of(model)
        if framework.kind in ("remote", "ensemble"):
            return await make_remote(framework, model, name, settings)
        if framework.kind == "infer":
            return await connect_infer(model, name, settings, self.spares)
        client = make_worker_client(name, settings)
        if framework.kind == "tokens":
            python = None if model.interpreter is None else find_interpreter(model.interpreter)
            client.attach(await start_infer_process(name, client, python))
        else:
            client.attach(await start_process(name, client, spare=self.spares.take(spare_kind(model))))
        return client

    def load_message(self, model: ModelConfig, path: Path) -> wire.Load:
        """The engine's config as the predictor's options. An encoder has another predictor, unless one was named."""
        from headway.checkpoint.checkpoint import is_encoder

        framework = run_of(model)
        if framework.kind in ("infer", "tokens"):
            return infer_load_message(model, path)
        if framework.kind in ("remote", "ensemble"):
            return wire.Load(predictor=framework.predictor, source=str(path), options=dict(model.options))
        if framework.is_foreign_engine:
            own = {name: getattr(model.engine, name) for name in _SHARED_OPTIONS}
            return wire.Load(predictor=framework.predictor, source=str(path), options={**own, **model.options})
        is_default = model.predictor == LANGUAGE_MODEL
        predictor = ENCODER if is_default and is_encoder(path) else model.predictor
        return wire.Load(predictor=predictor, source=str(path), options=asdict(model.engine))


def _estimate(model: ModelConfig, path: Path, budget: Amounts) -> ModelEstimate:
    from headway.checkpoint.checkpoint import is_encoder

    framework = run_of(model)
    if framework.is_foreign_engine:
        return estimate_generator(model, path, budget)
    is_ours = framework.reads_weights and model.predictor in (LANGUAGE_MODEL, ENCODER)
    task: EngineTask | None = None
    if is_ours:
        task = "encode" if model.predictor == ENCODER or is_encoder(path) else "generate"
    return estimate_model(model, path, task, budget)


def make_worker_client(name: str, settings: ClientSettings) -> WorkerClient:
    """A client without a channel."""
    return WorkerClient(
        name,
        limits=settings.limits,
        stall_timeout_s=settings.stall_timeout_s,
        clock=settings.clock,
        max_queued=settings.max_queued,
        on_lost=settings.on_lost,
        on_loading=settings.on_loading,
    )


def open_model(model: ModelConfig, path: Path, opened: "Checkpoint | None" = None) -> OpenedModel:
    """The checkpoint at `path`, which may be open. Blocks; raises ModelError, InvalidConfig."""
    from headway.checkpoint.checkpoint import open_checkpoint

    checkpoint = opened or open_checkpoint(path)
    return OpenedModel(make_text(model.text, checkpoint, path), checkpoint.created)


def open_text_alone(model: ModelConfig, path: Path) -> OpenedModel:
    """The text of a folder whose weights something else reads. Blocks; raises ModelError, InvalidConfig."""
    from headway.checkpoint.checkpoint import open_text

    text = make_language_text(model.text, open_text(path))
    return OpenedModel(text, int((path / "config.json").stat().st_mtime))


def make_text(settings: TextConfig, checkpoint: "Checkpoint", path: Path) -> ModelText:
    """The text of an open checkpoint. Blocks; raises ModelError, InvalidConfig."""
    encoder = make_encoder_text(checkpoint.shape)
    if encoder is not None:
        _check_encoder_settings(settings, path)
    return make_language_text(settings, checkpoint.text, encoder)


def make_language_text(settings: TextConfig, source: TextSource, encoder: EncoderText | None = None) -> ModelText:
    """The text of a model that answers in text, or of an encoder. Blocks; raises ModelError, InvalidConfig."""
    tokenizer = make_tokenizer(source)
    template = make_chat_template(source, settings.chat_template)
    return ModelText(
        tokenizer=tokenizer,
        chat_template=template,
        generation_defaults=read_generation_defaults(source, settings.generation_config),
        encoder=encoder,
        output=OutputStyle() if encoder is not None else make_output_style(settings, template, tokenizer),
    )


def make_output_style(text: TextConfig, template: ChatTemplate | None, tokenizer: Tokenizer) -> OutputStyle:
    """How a model's tool calls and reasoning look: what was named, else what its chat template tells.

    Raises InvalidConfig for a name that there is not.
    """
    source = "" if template is None else template.source
    dialect = choose_dialect(source, tokenizer, _named(text.tool_call_parser))
    return OutputStyle(dialect, choose_reasoning(source, tokenizer, _named(text.reasoning_parser)))


def _named(setting: str) -> str | None:
    return None if setting == "auto" else setting


def _check_encoder_settings(text: TextConfig, path: Path) -> None:
    """Raises InvalidConfig for what has no effect where no text is made."""
    given = {"chat_template": text.chat_template}
    for name in ("generation_config", "tool_call_parser", "reasoning_parser"):
        given[name] = _named(getattr(text, name))
    for name, value in given.items():
        if value is not None:
            raise InvalidConfig(
                f"{name} is {value[:100]!r}, and {path} is an encoder, which answers nothing: leave it out", param=name
            )


def make_encoder_text(shape: "ModelShape") -> EncoderText | None:
    """What the parent has to know of an encoder; None: it is a language model."""
    encoder = shape.encoder
    if encoder is None:
        return None
    return EncoderText(
        reads_pairs=encoder.num_labels is not None,
        width=shape.hidden_size,
        num_token_types=encoder.num_token_types,
        is_normalised=encoder.is_normalised,
        dimensions=encoder.dimensions,
        any_dimension=encoder.any_dimension,
        prompts=encoder.prompts,
        default_prompt=encoder.default_prompt,
    )


def read_generation_defaults(source: TextSource, setting: str) -> Mapping[str, Any]:
    """The sampling defaults that TextConfig.generation_config asks for.

    Raises InvalidConfig for a folder without, and for defaults that no request may have.
    """
    if setting == "auto":
        return _checked(source.generation_defaults, "the model's generation_config")
    if setting == "headway":
        return {}
    path = Path(setting) / "generation_config.json"
    try:
        with path.open("rb") as file:
            defaults = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"generation_config is {setting!r}, and {path} can not be read: {error}; give auto, headway or a folder"
            " with a generation_config.json",
            param="generation_config",
        ) from error
    if not isinstance(defaults, dict):
        raise InvalidConfig(f"{path} holds no JSON object", param="generation_config")
    return _checked(defaults, str(path))


def _checked(defaults: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The defaults, if a request can have them: else each caller would be blamed for them."""
    try:
        SamplingParams(**sampling_defaults(defaults))
    except InvalidRequest as error:
        raise InvalidConfig(
            f"{where} can not be used: {error.message}; correct it, or start with --generation-config headway",
            param="generation_config",
        ) from error
    return defaults
