"""Finds a predictor's class, by its dotted name or, where that can not be imported, by its file."""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Union

from headway_wire.predictor import InferPredictor, PredictorError
from headway_wire.token_server import TokenPredictor


def find_predictor(name: str, file: str = "") -> Union[InferPredictor, TokenPredictor]:
    """An instance of the class that `module:Class` names. Raises PredictorError.

    Args:
        file: the module's file. The folder that holds it becomes the package that its name says, so that it may import
            the files beside it as it does where the whole is installed.
    """
    module_name, _, class_name = name.partition(":")
    try:
        if file:
            _make_packages(module_name, os.path.dirname(os.path.abspath(file)))
        predictor = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:
        # Whatever a foreign file raises as it is imported is why this model can not be loaded.
        raise PredictorError(
            "UnsupportedModel", f"the predictor {name!r} can not be made: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(predictor, "infer") and not isinstance(predictor, TokenPredictor):
        raise PredictorError("UnsupportedModel", f"the predictor {name!r} has no infer(): it takes no tensors")
    return predictor  # type: ignore[no-any-return]


def _make_packages(module_name: str, folder: str) -> None:
    """Empty packages for all but the last part of the name; the innermost looks for its modules in `folder`."""
    parts = module_name.split(".")[:-1]
    for depth in range(1, len(parts) + 1):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [folder] if depth == len(parts) else []
        sys.modules[package.__name__] = package
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], package)
