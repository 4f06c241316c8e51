"""An ensemble's YAML file, read and checked."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

from headway.errors import InvalidConfig
from headway.service.ensemble import Ensemble, check_ensemble

_MAX_FILE_BYTES = 256 * 1024


class _Loader(yaml.SafeLoader):
    """Without aliases: a few lines of them stand for a file that no memory holds, once it is written out."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Raises ComposerError for an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                problem="an alias (*name) is not taken here: write it out", problem_mark=mark
            )
        return super().compose_node(parent, index)


def read_ensemble(path: Path) -> Ensemble:
    """Reads and checks a file. Raises InvalidConfig that names the place."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise InvalidConfig(f"{path} is over {_MAX_FILE_BYTES} bytes: is it an ensemble?")
        ensemble = msgspec.convert(yaml.load(data, _Loader), Ensemble)
    except OSError as error:
        raise InvalidConfig(f"the ensemble {path} can not be read: {error.strerror}") from None
    except (yaml.YAMLError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidConfig(f"{path} is no ensemble: {error}") from None
    check_ensemble(ensemble, str(path))
    return ensemble
