"""The YAML file of settings: flat, each key a flag's name with - or _; what it cannot mean is an error."""

from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from headway.cli.refused import advice_on
from headway.errors import InvalidConfig

_MAX_BYTES = 1 << 20


def read_yaml(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """The file's values by field name; an empty value (key:) counts as not given.

    Raises:
        InvalidConfig: no such file, no YAML, no mapping, a key twice, a key that is not `known` (the nearest is named).
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _refuse(f"the settings file {path} cannot be read: {error.strerror}") from None
    if len(text) > _MAX_BYTES:
        raise _refuse(f"the settings file {path} is over {_MAX_BYTES} bytes: is it the right one?")
    try:
        content = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _refuse(f"{path}{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refuse(f"{path} is no YAML that can be read: {str(error).splitlines()[0]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise _refuse(f"{path} must hold lines such as port: 8000, not a {type(content).__name__}")
    return _named(content, path, known)


def nearest(name: str, known: Sequence[str]) -> str:
    """, did you mean ...? or nothing."""
    found = get_close_matches(name, known, 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def _refuse(message: str) -> InvalidConfig:
    return InvalidConfig(message, param="config")


def _named(content: dict[Any, Any], path: Path, known: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    flags = [name.replace("_", "-") for name in known]
    for key, value in content.items():
        if not isinstance(key, str):
            raise _refuse(f"{path} has the key {key!r}; keys are flags' names, such as port")
        flag = key.lstrip("-").replace("_", "-")
        name = flag.replace("-", "_")
        if name not in known:
            advice = advice_on(flag)
            hint = f": {advice}" if advice else nearest(flag, flags) or "; headway serve --help lists them"
            raise _refuse(f"{path} has {key}, which is no setting of Headway{hint}")
        if name in values:
            raise _refuse(f"{path} has {flag} twice")
        if value is not None:
            values[name] = value
    return values


class _Loader(yaml.SafeLoader):
    """Safe, and a key that stands twice is an error: YAML's own way is that the last one silently wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a flag's name", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
