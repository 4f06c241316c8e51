"""ModelNames: which names reach which model. Pure: made anew of all that is served whenever that changes.

A model is named by its id, and by id@version where it has a version. Of several versions one is the default: the id
alone, the aliases and the presets are its. An alias is another name; a preset is one with defaults of its own. All of
them lead to the same resident: its weights are loaded once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.config import ModelConfig, Preset
from headway.errors import InvalidConfig, ModelNotFound
from headway.service.served_model import ServedModel

NameKind = Literal["model", "version", "alias", "preset"]
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Name:
    """What a name means."""

    model: ServedModel
    kind: NameKind = "model"
    preset: Preset | None = None


class ModelNames:
    """The names of some models. Raises InvalidConfig for a name that two of them have."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._names: dict[str, Name] = {}
        versions: dict[str, list[ServedModel]] = {}
        for model in models:
            versions.setdefault(model_id(model.config), []).append(model)
        for id_, served in versions.items():
            self._add_versions(id_, served)

    def find(self, name: str) -> Name:
        """Raises ModelNotFound, which lists some of those there are."""
        found = self._names.get(name)
        if found is None:
            raise ModelNotFound(f"there is no model {name[:200]!r} here; {self._known()}", param="model")
        return found

    def items(self) -> Iterator[tuple[str, Name]]:
        """All names, a model's own before its others."""
        return iter(self._names.items())

    def listed(self) -> Iterator[tuple[str, Name]]:
        """Those worth telling: without id@version of what the id alone means."""
        return (each for each in self._names.items() if each[1].kind != "version" or not self._is_default(each[1]))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def _is_default(self, name: Name) -> bool:
        return self._names[model_id(name.model.config)].model is name.model

    def _add_versions(self, id_: str, served: Sequence[ServedModel]) -> None:
        default = choose_default(served)
        self._add(id_, Name(default))
        for alias in default.config.served_names[1:]:
            self._add(alias, Name(default, "alias"))
        for preset in default.config.presets:
            self._add(preset.name, Name(default, "preset", preset))
        for model in served:
            key = model_key(model.config)
            if key != id_:
                self._add(key, Name(model, "version"))
            elif len(served) > 1:
                raise InvalidConfig(f"two models are named {id_!r}: give one another name", param="served_model_name")

    def _add(self, name: str, meaning: Name) -> None:
        if name in self._names:
            raise InvalidConfig(f"two models are named {name!r}: give one another name", param="served_model_name")
        self._names[name] = meaning

    def _known(self) -> str:
        known = list(self._names)
        if not known:
            return "none is served yet: add one with `headway models add` or POST /admin/models"
        more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
        return f"there is: {', '.join(known[:_MAX_LISTED])}{more}"


def choose_default(served: Sequence[ServedModel]) -> ServedModel:
    """Of a model's versions, the one that the id alone means: the last that says so, else the last."""
    return next((model for model in reversed(served) if model.config.is_default), served[-1])


def model_id(config: ModelConfig) -> str:
    """What requests name it by, whichever its version."""
    return config.served_names[0] if config.served_names else default_name(config.source)


def model_key(config: ModelConfig) -> str:
    """id, or id@version: unlike any other's."""
    return f"{model_id(config)}@{config.version}" if config.version else model_id(config)


def default_name(source: str) -> str:
    """A model's name where none is given: a hub id and "demo" as they are, a path's last part without .gguf."""
    path = Path(source)
    looks_like_path = path.is_absolute() or source.startswith(".") or path.suffix == ".gguf" or len(path.parts) > 2
    is_path = looks_like_path or (source != "demo" and path.exists())
    return path.name.removesuffix(".gguf") if is_path else source
