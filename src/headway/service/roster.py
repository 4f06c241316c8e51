"""Roster: which models are served, and by which names, while that changes: models come, go, and take another's place.

    swap      the names lead to the new one at once; what the old one began it ends, and then it is gone
    default   of a model's versions another one is meant by the id, the aliases and the presets

All on the event loop's thread, and each change at once: a request finds what was there before, or what is there now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from headway.config import ModelConfig
from headway.errors import ModelNotFound
from headway.service.events import Keep
from headway.service.names import ModelNames, Name, model_id, model_key
from headway.service.residents import Residents
from headway.service.served_model import ServedModel


class Roster:
    """The served models and their names."""

    def __init__(self, configs: Iterable[ModelConfig]) -> None:
        """Raises InvalidConfig for names that two have."""
        self.models = [ServedModel(model_key(config), config) for config in configs]
        """In the order in which they came."""
        self._ids = {model.id for model in self.models}
        self.names = ModelNames(self.models)
        self._residents: Residents | None = None
        self.on_change: Callable[[], None] | None = None
        """Called when names lead elsewhere, or models have another config."""

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
        served = self.draft(config)
        self.rearrange(add=[served])
        return served

    def remove(self, served: ServedModel) -> None:
        """It has no names from now on; its processes end with its last lease."""
        self.rearrange(remove=[served])

    def draft(self, config: ModelConfig) -> ServedModel:
        """A model that nobody knows yet: for rearrange(), or swap()."""
        return ServedModel(self._free_key(model_key(config)), config)

    def rearrange(
        self,
        *,
        add: Sequence[ServedModel] = (),
        remove: Sequence[ServedModel] = (),
        change: Mapping[int, ModelConfig] = MappingProxyType({}),
    ) -> None:
        """All at once: some come (draft()), some go, some have another config from now on while they run on.

        Args:
            add: cold ones; the pinned are loaded at once.
            remove: their processes end with their last leases.
            change: configs by the id() of their models, which serve them as they are.

        Raises InvalidConfig for a name that two would have; then nothing has changed.
        """
        before = [(model, model.config) for model in self.models]
        gone = {id(model) for model in remove}
        kept = [model for model in self.models if id(model) not in gone]
        for model in kept:
            config = change.get(id(model), model.config)
            if config != model.config:  # what stays as it is is not told: its failures are not forgiven
                model.config = config
        try:
            self._set([*kept, *add])
        except Exception:
            for model, config in before:
                model.config = config
            raise
        self._tell(add, remove, [(model, config) for model, config in before if model.config is not config])

    def prepare(self, config: ModelConfig) -> ServedModel:
        """One more that has no names yet, to be loaded beside what it is to replace: load(), then swap(), discard()."""
        served = self.draft(config)
        self._introduce(served)
        return served

    async def load(self, served: ServedModel) -> None:
        """Returns once it is ready. Raises why it can not be."""
        if self._residents is not None:
            await self._residents.load(served)

    def swap(self, old: ServedModel, new: ServedModel) -> None:
        """The names of `old` lead to `new` (prepare()) at once; what `old` began it ends, and then its processes.

        Raises InvalidConfig for a name that another has, ModelNotFound where `old` is not served any more; then nothing
        has changed.
        """
        if old not in self.models:
            raise ModelNotFound(f"model {old.id} is not served any more", param="model")
        self._set([new if model is old else model for model in self.models])
        if self._residents is not None:
            self._residents.remove(old)

    def discard(self, served: ServedModel) -> None:
        """What prepare() made is not wanted."""
        if self._residents is not None and served.id in self._residents.models:
            self._residents.remove(served)

    def change(self, served: ServedModel, config: ModelConfig) -> None:
        """Other names, presets or residency for a model that runs on as it is. Raises InvalidConfig."""
        self.rearrange(change={id(served): config})

    def set_default(self, id_: str, version: str) -> ServedModel:
        """From now on the id means this version. Raises ModelNotFound for one that there is not."""
        versions = self.versions(id_)
        chosen = next((model for model in versions if model.config.version == version), None)
        if chosen is None:
            known = ", ".join(model.config.version or "(none)" for model in versions) or "no version at all"
            raise ModelNotFound(f"{id_} has no version {version[:100]!r}; it has {known}", param="version")
        self.rearrange(change={id(each): replace(each.config, is_default=each is chosen) for each in versions})
        return chosen

    def _tell(
        self,
        added: Iterable[ServedModel],
        removed: Iterable[ServedModel],
        changed: Iterable[tuple[ServedModel, ModelConfig]],
    ) -> None:
        """The pool, of what is different; `changed`: with the config before."""
        residents = self._residents
        if residents is None:
            return
        for model in removed:
            residents.remove(model)
        served = {id(model) for model in self.models}
        for model, before in changed:
            if id(model) in served:
                residents.change(model, model.config)
                if model.config.residency.is_pinned and not before.residency.is_pinned:
                    residents.pool.post(Keep(model.id))
        for model in added:
            self._introduce(model)

    def _introduce(self, served: ServedModel) -> None:
        if self._residents is not None:
            self._residents.add(served)
            if served.config.residency.is_pinned:
                self._residents.pool.post(Keep(served.id))

    def _set(self, models: list[ServedModel]) -> None:
        self.names = ModelNames(models)
        self.models = models
        self._ids = {model.id for model in models}
        if self.on_change is not None:
            self.on_change()

    def _free_key(self, key: str) -> str:
        """Another one while an earlier model of the same key is still on its way out: both may run for a while."""
        residents = self._residents.models if self._residents is not None else {}
        number = 2
        free = key
        while free in self._ids or free in residents:
            free, number = f"{key}~{number}", number + 1
        return free
