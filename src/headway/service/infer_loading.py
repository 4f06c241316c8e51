"""How a model of kind `infer` (service/frameworks) is found, started and told what to load."""

import functools
from dataclasses import replace
from pathlib import Path

import headway
import headway_wire as wire
from headway.config import CheckpointConfig, ModelConfig
from headway.errors import InvalidConfig
from headway.service.frameworks import framework_of, run_of
from headway.worker.environments import find_interpreter
from headway.worker.infer_client import InferClient
from headway.worker.infer_process import start_infer_process
from headway.worker.resident import ClientSettings
from headway.worker.spares import SpareKind, Spares


async def connect_infer(model: ModelConfig, name: str, settings: ClientSettings, spares: Spares) -> InferClient:
    """Starts its processes, which wait for their Load. Raises OSError, InvalidConfig.

    `spares`: one of its kind is taken.
    """
    python = None if model.interpreter is None else find_interpreter(model.interpreter)
    kind = spare_kind(model)
    start = functools.partial(start_infer_process, python=python, take=lambda: spares.take(kind))
    client = InferClient(name, settings, model.infer, start)
    await client.start()
    return client


def spare_kind(model: ModelConfig) -> SpareKind | None:
    """What would wait for it; None: nothing, or its interpreter is not there."""
    framework = run_of(model)
    if not framework.imports:
        return None
    if framework.kind == "engine":
        return SpareKind("tokens", framework.imports)
    if model.interpreter is None:
        return SpareKind("tensors", framework.imports)
    modules = tuple(module for module in framework.imports if not module.startswith("headway."))
    try:
        return SpareKind("tensors", modules, find_interpreter(model.interpreter)) if modules else None
    except InvalidConfig:
        return None


def find_source(model: ModelConfig, checkpoint: CheckpointConfig) -> Path:
    """A file, folder or archive, here, at an address or (of transformers) on the hub; what is none is a name that the
    predictor may know. Blocks.

    Raises as sources.fetch_source().
    """
    from headway.checkpoint.sources import fetch_source, is_address

    source = model.source
    # The folders that transformers loads are those of a hub; other frameworks may know a name that is no source.
    is_source = (
        is_address(source) or framework_of(model.framework).loads_hub_folders or Path(source).expanduser().exists()
    )
    if is_source or model.sha256 is not None:
        return fetch_source(source, replace(checkpoint, revision=None), sha256=model.sha256).absolute()
    return Path(source)


def infer_load_message(model: ModelConfig, path: Path) -> wire.Load:
    """What its processes are to load. Another interpreter gets the predictor's file, since it can not import it."""
    default = ModelConfig(source="").predictor
    predictor = run_of(model).predictor if model.predictor == default else model.predictor
    return wire.Load(
        predictor=predictor,
        source=str(path),
        options={"type": model.type, **model.options},
        predictor_file="" if model.interpreter is None else _file_of(predictor),
        max_batch_size=model.infer.max_batch_size,
        batch_delay_s=model.infer.batch_delay_s,
    )


def _file_of(predictor: str) -> str:
    """Of a predictor of Headway's own; "": it is another's, which the other interpreter imports by its name."""
    module, _, _ = predictor.partition(":")
    package, *rest = module.split(".")
    if package != "headway":
        return ""
    path = Path(headway.__file__).parent.joinpath(*rest).with_suffix(".py")
    if not path.is_file():
        raise InvalidConfig(f"the predictor {predictor!r} has no file {path}", param="predictor")
    return str(path)
