"""Entries of the catalog as JSON and YAML have them: read, checked with the place of each fault, and written.

    {"models": [{"id": "m", "name": "M", "type": "text", "framework": "onnx", "version": "1", "description": "..."}]}

Fields that are not given have CatalogEntry's defaults; is_pinned is pinned there, is_watched watch, is_default default.
Without a source the name is one if it looks so (ORG/NAME, pytorch/vision:NAME), else the id is.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from headway.config import InferConfig, ModelType, Preset
from headway.core.catalog import CatalogEntry
from headway.core.sampling import DEFAULTABLE, SamplingParams
from headway.errors import HeadwayError, InvalidRequest
from headway.service.catalog_options import check_options
from headway.service.frameworks import FRAMEWORKS, framework_of

MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 10_000
PRESET_SAMPLING = (*DEFAULTABLE, "max_tokens")
"""What a preset may set of sampling."""
_TYPES: tuple[str, ...] = get_args(ModelType)
_SHORT_TYPES = {"image": "image-classification", "embeddings": "embedding", "classification": "text-classification"}
_FRAMEWORK_NAMES = {"pytorch": "torch", "hf": "transformers", "huggingface": "transformers", "tf": "tensorflow"}
_FRAMEWORK_NAMES |= {"sklearn": "python", "scikit-learn": "python", "onnxruntime": "onnx", "llama.cpp": "headway"}
_RENAMED = {"is_pinned": "pinned", "is_watched": "watch", "is_default": "default"}
"""Fields of CatalogEntry that have another name in files."""


def _as_text(value: object) -> object:
    """A version that YAML or JSON took for a number: 1, 1.0."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class PresetForm(_Strict):
    """A preset in a file."""

    name: str
    sampling: dict[str, Any] = Field(default_factory=dict)
    template_kwargs: dict[str, Any] = Field(default_factory=dict)


class InferForm(_Strict):
    """InferConfig in a file."""

    max_batch_size: int = Field(default=1, ge=1, le=65536)
    batch_delay_s: float = Field(default=0.0, ge=0, le=60)
    instances: int = Field(default=1, ge=1, le=256)
    concurrency: int | None = Field(default=None, ge=1)
    timeout_s: float | None = Field(default=None, gt=0)
    max_retries: int = Field(default=0, ge=0, le=10)


class EntryForm(_Strict):
    """An entry in a file or a body."""

    id: str
    version: Annotated[str, BeforeValidator(_as_text)] = ""
    name: str = ""
    type: str | None = None
    framework: str = "headway"
    description: str = ""
    source: str = ""
    sha256: str | None = None
    device: str = "auto"
    expected_bytes: int | None = None
    expected_load_s: float | None = None
    measured_bytes: int | None = None
    measured_load_s: float | None = None
    aliases: list[str] = Field(default_factory=list)
    presets: list[PresetForm] = Field(default_factory=list)
    pinned: bool = False
    idle_timeout_s: float | None = None
    watch: bool = False
    default: bool = True
    interpreter: str | None = None
    infer: InferForm = InferForm()
    options: dict[str, Any] = Field(default_factory=dict)


def read_entry(fields_: object, place: str = "") -> CatalogEntry:
    """An entry from plain data. Raises InvalidRequest that names the field, after `place`."""
    if not isinstance(fields_, Mapping):
        raise _fault(place, f"must be an object with an id, and is {type(fields_).__name__}")
    given = {str(name): value for name, value in fields_.items() if value is not None}
    try:
        form = EntryForm.model_validate(given)
    except ValidationError as error:
        raise _translated(error, place) from None
    try:
        return _to_entry(form)
    except HeadwayError as error:
        raise InvalidRequest(f"{place}: {error.message}" if place else error.message, param=error.param) from None


def read_entries(text: bytes | str, *, place: str = "the catalog") -> list[CatalogEntry]:
    """{"models": [...]}, or the list alone, as JSON or YAML. Raises InvalidRequest with the first fault's place."""
    if len(text) > MAX_BYTES:
        raise InvalidRequest(f"{place} has {len(text)} bytes, at most {MAX_BYTES}")
    return list_entries(_parse(text, place), place=place)


def list_entries(content: object, *, place: str = "the catalog") -> list[CatalogEntry]:
    """read_entries(), of what is parsed already."""
    models = content.get("models") if isinstance(content, Mapping) else content
    if isinstance(content, Mapping) and (others := [name for name in content if name != "models"]):
        raise InvalidRequest(f'{place} has {str(others[0])[:64]!r} beside "models": leave it out', param="models")
    if not isinstance(models, list):
        raise InvalidRequest(f'{place} must be {{"models": [...]}}: a list of entries, each with an id', param="models")
    if len(models) > MAX_ENTRIES:
        raise InvalidRequest(f"{place} has {len(models)} entries, at most {MAX_ENTRIES}", param="models")
    return [read_entry(model, f"models[{number}]") for number, model in enumerate(models)]


def entry_out(entry: CatalogEntry) -> dict[str, Any]:
    """The entry as plain data that read_entry() makes the same entry of; what has its default is left out."""
    out: dict[str, Any] = {"id": entry.id}
    for each in fields(entry):
        value = getattr(entry, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        is_usual = value == default and each.name not in ("type", "framework", "is_default")
        if not is_usual:
            out[_RENAMED.get(each.name, each.name)] = _plain(value)
    return out


def dump_entries(entries: list[CatalogEntry], form: str) -> str:
    """{"models": [...]} as json or yaml."""
    import yaml

    content = {"models": [entry_out(entry) for entry in entries]}
    if form == "yaml":
        return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, InferConfig):
        return {name: each for name, each in asdict(value).items() if each != getattr(InferConfig(), name)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Preset):
        return {name: dict(each) if isinstance(each, Mapping) else each for name, each in asdict(value).items() if each}
    return dict(value) if isinstance(value, Mapping) else value


def _to_entry(form: EntryForm) -> CatalogEntry:
    """Raises InvalidRequest, InvalidConfig."""
    framework = _FRAMEWORK_NAMES.get(form.framework.lower(), form.framework.lower())
    framework_of(framework)
    presets = tuple(Preset(**preset.model_dump()) for preset in form.presets)
    for preset in presets:
        _check_preset(preset)
    check_options(framework, form.options)
    fields_ = form.model_dump(
        exclude={"type", "framework", "presets", "infer", "aliases", "source", *_RENAMED.values()}
    )
    return CatalogEntry(
        **fields_,
        type=_read_type(form.type, framework),
        framework=framework,
        source=form.source or _implied_source(form),
        aliases=tuple(form.aliases),
        presets=presets,
        infer=InferConfig(**form.infer.model_dump()),
        **{ours: getattr(form, name) for ours, name in _RENAMED.items()},
    )


def _read_type(given: str | None, framework: str) -> ModelType:
    """A type by its name, or a short one: text is what the framework makes of texts. Raises InvalidRequest."""
    usual = FRAMEWORKS[framework].default_type
    if given is None:
        return usual
    name = given.lower()
    if name == "text":
        return usual if usual.startswith("text-") else "text-classification"
    found = _SHORT_TYPES.get(name, name)
    if found not in _TYPES:
        raise InvalidRequest(
            f"type is {given[:64]!r}; it must be one of {', '.join(_TYPES)}, or text or image", param="type"
        )
    return found  # type: ignore[return-value]


def _implied_source(form: EntryForm) -> str:
    is_source = "/" in form.name and " " not in form.name
    return form.name if is_source else form.id


def _check_preset(preset: Preset) -> None:
    """Raises InvalidRequest for what no request could ask for."""
    unknown = sorted(preset.sampling.keys() - set(PRESET_SAMPLING))
    if unknown:
        raise InvalidRequest(
            f"preset {preset.name!r} sets {unknown[0][:64]!r}; it may set {', '.join(PRESET_SAMPLING)}", param="presets"
        )
    try:
        SamplingParams(**preset.sampling)
    except InvalidRequest as error:
        raise InvalidRequest(f"preset {preset.name!r}: {error.message}", param="presets") from None


def _parse(text: bytes | str, place: str) -> object:
    """JSON, else YAML, of which JSON is nearly a part; anchors are refused, since they can make much out of little."""
    import yaml

    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidRequest(f"{place} is nested too deeply to be read: make it flatter") from None
    except ValueError:
        pass
    try:
        for token in yaml.scan(text, yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                raise InvalidRequest(f"{place} has an anchor or alias of YAML: write entries out")
        return yaml.load(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidRequest(f"{place} is neither JSON nor YAML: {reason}") from None


def _translated(error: ValidationError, place: str) -> InvalidRequest:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        near = get_close_matches(name, EntryForm.model_fields, 1, 0.6)
        return _fault(
            place, f"has {name[:64]!r}, which is no field{f'; did you mean {near[0]}?' if near else ''}", path
        )
    if first["type"] == "missing":
        return _fault(place, f"lacks {path}", path)
    message = first["msg"].replace("Input should be", "it must be")
    shown = repr(first["input"])[:80]
    return InvalidRequest(
        f"{place} {path} is {shown}: {message}".strip(), param=".".join(filter(None, [place, path])) or None
    )


def _fault(place: str, words: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(f"{place or 'the entry'} {words}", param=".".join(filter(None, [place, param])) or None)
