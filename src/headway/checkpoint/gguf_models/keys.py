"""Metadata keys of one architecture."""

import numpy as np

from headway.checkpoint.fields import Fields
from headway.errors import UnsupportedModel


class Keys:
    """attention.head_count is llama.attention.head_count."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self.architecture = architecture

    @property
    def where(self) -> str:
        """The file, for errors."""
        return self.fields.where

    def name(self, key: str) -> str:
        """The whole key."""
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        """Whether it is there."""
        return self.fields.has(self.name(key))

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 31) -> int:
        """As Fields.integer."""
        return self.fields.integer(self.name(key), default, low=low, high=high)

    def number(self, key: str, default: float | None = None, *, positive: bool = True) -> float:
        """As Fields.number."""
        return self.fields.number(self.name(key), default, positive=positive)

    def layered(self, key: str, default: int | None = None) -> int:
        """A number, or an array with the same number for each layer."""
        value = self.fields.values.get(self.name(key))
        if isinstance(value, np.ndarray):
            different = np.unique(value).tolist()
            if len(different) != 1:
                raise UnsupportedModel(f"{self.where}: {self.name(key)} differs between layers ({different[:5]})")
            return Fields({key: different[0]}, self.where).integer(key)
        return self.integer(key, default)

    def flags(self, key: str, count: int) -> list[bool] | None:
        """An array of a truth value for each layer; None where the key is not there."""
        value = self.fields.values.get(self.name(key))
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or value.size < count:
            self.fields.fail(self.name(key), f"is not a list of a truth value for each of {count} layers")
        return [bool(flag) for flag in value[:count]]
