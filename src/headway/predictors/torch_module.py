"""A user's PyTorch module, from its file: imported by its path, made by its class or function."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.predictors.options import file_inside, invalid_config
from headway_wire import PredictorError


def make_module(folder: Path, file: str, name: str, kwargs: Mapping[str, Any]) -> Any:
    """The torch.nn.Module that `name` of `file` makes; "": the only class of a module that the file defines.

    The file may import others beside it. Raises PredictorError (InvalidConfig, ModelError with the file's own words).
    """
    path = file_inside(folder, file, "module")
    make = _find_class(_import_file(path), name, path)
    try:
        module = make(**kwargs)
    except Exception as error:  # the user's code
        raise PredictorError(
            "ModelError", f"{path}: {make.__name__}({_shown(kwargs)}) raised {type(error).__name__}: {error}"
        ) from error
    import torch

    if not isinstance(module, torch.nn.Module):
        raise invalid_config(f"{path}: {make.__name__} made a {type(module).__name__}, and no torch.nn.Module", "class")
    return module


def _import_file(path: Path) -> ModuleType:
    name = f"headway_user_module_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise invalid_config(f"module is {path}; it must be a Python file (.py)", "module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a file beside it shadows no library
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code
        raise PredictorError("ModelError", f"{path} can not be imported: {type(error).__name__}: {error}") from error
    return module


def _find_class(module: ModuleType, name: str, path: Path) -> Any:
    import torch

    if name:
        found = getattr(module, name, None)
        if not callable(found):
            raise invalid_config(f"{path} has no class or function {name!r}", "class")
        return found
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        names = ", ".join(kind.__name__ for kind in classes) or "none"
        raise invalid_config(f"{path} has {len(classes)} modules ({names}): name one as the option class", "class")
    return classes[0]


def _shown(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())[:300]
