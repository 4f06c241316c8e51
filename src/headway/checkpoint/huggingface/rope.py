"""Rotary positions of a config.json: older files say rope_theta and rope_scaling, newer ones rope_parameters."""

from collections.abc import Mapping
from typing import Any

from headway.checkpoint.fields import Fields
from headway.checkpoint.shape import RopeShape
from headway.errors import UnsupportedModel

_WITH_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


def read_rope(config: Fields, head_dim: int, *, theta: float, share: float = 1.0) -> RopeShape:
    """One kind of positions for all layers; theta and share are what holds where config.json says nothing.

    Raises UnsupportedModel where kinds of layers differ.
    """
    given = given_parameters(config)
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModel(f"{config.where} has rotary positions that differ between kinds of layers")
    return rope_of(config, given, head_dim, theta=theta, share=share)


def given_parameters(config: Fields) -> Mapping[str, Any]:
    """rope_scaling or rope_parameters, empty for none."""
    return dict(config.mapping("rope_scaling") or config.mapping("rope_parameters"))


def rope_of(config: Fields, given: Mapping[str, Any], head_dim: int, *, theta: float, share: float = 1.0) -> RopeShape:
    """From these parameters, with keys of config.json for what they leave out."""
    parameters = Fields(given, f"{config.where}: rope parameters")
    theta = parameters.number("rope_theta", config.number("rope_theta", theta))
    share = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", share))
    dims = int(head_dim * share)
    if not 0 < dims <= head_dim or dims % 2:
        config.fail("partial_rotary_factor", f"is {share}: {dims} of {head_dim} dimensions cannot be rotated")
    return RopeShape(theta=theta, dims=dims, scaling=_scaling(config, parameters))


def _scaling(config: Fields, parameters: Fields) -> Mapping[str, Any]:
    kind = parameters.string("rope_type", parameters.string("type", "default"))
    if kind == "default":
        return {}
    left_out = ("rope_theta", "partial_rotary_factor", "type")
    scaling = {key: value for key, value in parameters.values.items() if key not in left_out and value is not None}
    scaling["rope_type"] = kind
    if kind in _WITH_ORIGINAL_LENGTH:
        # A value beside the parameters is the one that was trained with (Phi's files); transformers prefers it too.
        original, longest = "original_max_position_embeddings", config.integer("max_position_embeddings")
        scaling[original] = config.integer(original, parameters.integer(original, longest))
    return scaling
