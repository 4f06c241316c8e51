"""Roster: which models are served, and by which names, while that changes: models come, go, and take another's place.

    swap      the names lead to the new one at once; what the old one began it ends, and then it is gone
    default   of a model's versions another one is meant by the id, the aliases and the presets

All on the event loop's thread, and each change at once: a request finds what was there before, or what is there now.
"""

from collections.abc import Iterable
from dataclasses import replace

from headway.config import ModelConfig
from headway.errors import ModelNotFound
from headway.service.names import ModelNames, Name, choose_default, model_id, model_key
from headway.service.residents import Residents, ServedModel


class Roster:
    """The served models and their names."""

    def __init__(self, configs: Iterable[ModelConfig]) -> None:
        """Raises InvalidConfig for names that two have."""
        self.models = [ServedModel(model_key(config), config) for config in configs]
        """In the order in which they came."""
        self.names = ModelNames(self.models)
        self._residents: Residents | None = None

    def attach(self, residents: Residents) -> None:
        """Tells, once, who runs them."""
        self._residents = residents

    def find(self, name: str) -> Name:
        """Raises ModelNotFound."""
        return self.names.find(name)

    def versions(self, id_: str) -> list[ServedModel]:
        """Of one model, in the order in which they came; empty: there is no such."""
        return [model for model in self.models if model_id(model.config) == id_]

    def add(self, config: ModelConfig) -> ServedModel:
        """One more, cold. Raises InvalidConfig for a name that another has; then nothing has changed."""
        served = ServedModel(self._free_key(model_key(config)), config)
        self._set([*self.models, served])
        if self._residents is not None:
            self._residents.add(served)
        return served

    def remove(self, served: ServedModel) -> None:
        """It has no names from now on; its processes end with its last lease."""
        self._set([model for model in self.models if model is not served])
        if self._residents is not None:
            self._residents.remove(served)

    def swap(self, old: ServedModel, new: ServedModel) -> None:
        """`new` is served in the place of `old`, whose processes end with its last lease.

        `new` was made by prepare() and may be loaded already. Raises InvalidConfig for names that another has.
        """
        self._set([new if model is old else model for model in self.models])
        if self._residents is not None:
            self._residents.remove(old)

    def prepare(self, config: ModelConfig) -> ServedModel:
        """One more that has no names yet, to be loaded beside what it is to replace (swap) or to join (admit)."""
        served = ServedModel(self._free_key(model_key(config)), config)
        if self._residents is not None:
            self._residents.add(served)
        return served

    def admit(self, served: ServedModel) -> None:
        """What prepare() made gets its names; if it is a default, it is the one from now on. Raises InvalidConfig."""
        self._set([*self.models, served])

    def discard(self, served: ServedModel) -> None:
        """What prepare() made is not wanted."""
        if self._residents is not None:
            self._residents.remove(served)

    def change(self, served: ServedModel, config: ModelConfig) -> None:
        """Other names, presets or residency for a model that runs on as it is. Raises InvalidConfig."""
        before, served.config = served.config, config
        try:
            self._set(self.models)
        except Exception:
            served.config = before
            raise

    def set_default(self, id_: str, version: str) -> ServedModel:
        """From now on the id means this version. Raises ModelNotFound for one that there is not."""
        versions = self.versions(id_)
        chosen = next((model for model in versions if model.config.version == version), None)
        if chosen is None:
            known = ", ".join(model.config.version or "(none)" for model in versions) or "no version at all"
            raise ModelNotFound(f"{id_} has no version {version[:100]!r}; it has {known}", param="version")
        for model in versions:
            model.config = replace(model.config, is_default=model is chosen)
        self._set(self.models)
        return chosen

    def default_version(self, id_: str) -> ServedModel | None:
        """What the id means; None: there is no such."""
        versions = self.versions(id_)
        return choose_default(versions) if versions else None

    def _set(self, models: list[ServedModel]) -> None:
        self.names = ModelNames(models)
        self.models = models

    def _free_key(self, key: str) -> str:
        """Another one while an earlier model of the same key is still on its way out: both may run for a while."""
        taken = {model.id for model in self.models}
        if self._residents is not None:
            taken |= self._residents.models.keys()
        number = 2
        free = key
        while free in taken:
            free, number = f"{key}~{number}", number + 1
        return free
