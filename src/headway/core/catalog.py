"""CatalogEntry: one version of a model as the catalog keeps it, checked where it is made."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.config import InferConfig, ModelType, Preset
from headway.errors import InvalidRequest

MAX_ID_LENGTH = 200
MAX_VERSION_LENGTH = 100
MAX_TEXT_LENGTH = 4000
"""Characters of a description or a source."""
MAX_DEVICE_LENGTH = 64
MAX_INTEGER = 2**63 - 1
"""Databases and JSON's readers hold no larger one."""
MAX_DEPTH = 32
"""Objects and lists within each other, of options."""
MAX_NAMES = 64
"""Aliases, and presets, of an entry."""
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?"
_ID = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A version of a model. Raises InvalidRequest that names the field, the value and the limit."""

    id: str
    """What requests name; parts joined by / as a hub has them."""
    version: str = ""
    """"": the model has no versions."""
    name: str = ""
    """For people."""
    type: ModelType = "text-generation"
    framework: str = "headway"
    """A name of service/frameworks."""
    description: str = ""
    source: str = ""
    """Where it comes from (checkpoint/sources); "": the id."""
    sha256: str | None = None
    """Of the source, where it is one file or an archive."""
    device: str = "auto"
    """auto, cpu, or cuda:N: where it has to run."""
    expected_bytes: int | None = None
    """Memory while it is resident, as its owner says."""
    expected_load_s: float | None = None
    measured_bytes: int | None = None
    """The same as it was at the last load."""
    measured_load_s: float | None = None
    aliases: tuple[str, ...] = ()
    """Other names, while this is the default version."""
    presets: tuple[Preset, ...] = ()
    """Names with defaults of their own, likewise."""
    is_pinned: bool = False
    """Loaded from the beginning and never evicted."""
    idle_timeout_s: float | None = None
    """Unloaded when it was not asked for so long."""
    is_watched: bool = False
    """The source is looked at again and again, and what is new there takes the place of what is served."""
    is_default: bool = True
    """Of its versions: the one that the id alone means."""
    interpreter: str | None = None
    infer: InferConfig = field(default_factory=InferConfig)
    options: Mapping[str, Any] = field(default_factory=dict)
    """The predictor's; of framework headway the flags of `headway serve` about engine and text, by their names."""

    def __post_init__(self) -> None:
        check_model_id(self.id, "id")
        if self.version:
            check_version(self.version)
        for name in ("name", "description", "source", "interpreter"):
            _check_text(name, getattr(self, name) or "")
        _check_text("device", self.device, MAX_DEVICE_LENGTH)
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise InvalidRequest(
                f"sha256 is {self.sha256[:80]!r}; it must be 64 hexadecimal digits in lower case", param="sha256"
            )
        for name in ("expected_bytes", "expected_load_s", "measured_bytes", "measured_load_s", "idle_timeout_s"):
            _check_not_negative(name, getattr(self, name))
        self._check_names()
        _check_plain("options", self.options)
        for preset in self.presets:
            _check_plain("presets", [preset.sampling, preset.template_kwargs])

    @property
    def key(self) -> str:
        """id, or id@version: unlike any other entry's."""
        return f"{self.id}@{self.version}" if self.version else self.id

    def _check_names(self) -> None:
        names = [*self.aliases, *(preset.name for preset in self.presets)]
        if max(len(self.aliases), len(self.presets)) > MAX_NAMES:
            raise InvalidRequest(f"{self.id} has {len(names)} aliases and presets; each may have {MAX_NAMES}")
        for param, given in (("aliases", self.aliases), ("presets", [preset.name for preset in self.presets])):
            for name in given:
                check_model_id(name, param)
        twice = next((name for name in names if names.count(name) > 1 or name == self.id), None)
        if twice is not None:
            raise InvalidRequest(
                f"{twice!r} is named twice by {self.id}: id, aliases and presets must differ", param="aliases"
            )


def check_model_id(value: str, param: str) -> None:
    """Raises InvalidRequest for what is no name of a model: names are parts of URLs, and of paths in caches."""
    if len(value) > MAX_ID_LENGTH:
        raise InvalidRequest(
            f"{param} has {len(value)} characters, at most {MAX_ID_LENGTH}: choose a shorter one", param=param
        )
    if not _ID.fullmatch(value) or ".." in value:
        raise InvalidRequest(
            f"{param} is {value!r}; it must be letters, digits, '.', '_' and '-', begin with a letter or digit, and "
            "may have parts joined by '/', none of them with '..' in it",
            param=param,
        )


def check_version(value: str) -> None:
    """Raises InvalidRequest for what is no version."""
    if len(value) > MAX_VERSION_LENGTH or not _VERSION.fullmatch(value) or ".." in value:
        raise InvalidRequest(
            f"version is {value[:MAX_VERSION_LENGTH]!r}; it must be at most {MAX_VERSION_LENGTH} letters, digits, '.', "
            "'_', '-', '+', ':' and '/', and begin with a letter or digit",
            param="version",
        )


def _check_text(name: str, value: str, max_length: int = MAX_TEXT_LENGTH) -> None:
    if len(value) > max_length or not _is_told(value) or any(ord(each) < 32 and each not in "\t\n" for each in value):
        raise InvalidRequest(
            f"{name} has {len(value)} characters; it must be at most {max_length}, and no control character or lone "
            "surrogate among them",
            param=name,
        )


def _check_not_negative(name: str, value: float | None) -> None:
    if value is not None and not (0 <= value <= MAX_INTEGER):
        raise InvalidRequest(f"{name} is {value:.20g}; it must be a number from 0 to {MAX_INTEGER}", param=name)


def _check_plain(name: str, value: object, depth: int = 0) -> None:
    """Raises InvalidRequest for what JSON does not tell, or some reader of it does not take: YAML has more."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(
            f"{name} has over {MAX_DEPTH} objects and lists within each other: make it flatter", param=name
        )
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise InvalidRequest(f"{name} has the key {str(key)[:64]!r}; it must be a text: quote it", param=name)
            _check_plain(name, key)
            _check_plain(name, each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_plain(name, each, depth + 1)
    elif not _is_plain(value):
        raise InvalidRequest(
            f"{name} has {repr(value)[:64]}, which JSON does not tell: give texts, numbers of 64 bits, true, false, "
            "null, lists and objects",
            param=name,
        )


def _is_plain(value: object) -> bool:
    """Of what has nothing within."""
    if isinstance(value, str):
        return _is_told(value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    return value is None


def _is_told(text: str) -> bool:
    """Whether UTF-8 tells it, and databases take it."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)
