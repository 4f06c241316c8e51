"""What a user may call a model, made into a path: demo, a GGUF file, a folder, or a hub repository."""

from difflib import get_close_matches
from pathlib import Path

from headway.checkpoint.checkpoint import check_path
from headway.checkpoint.demo import fetch_demo
from headway.checkpoint.hub import fetch_from_hub, parse_hub_source
from headway.checkpoint.progress import Progress, silent
from headway.config import CheckpointConfig
from headway.errors import InvalidConfig

_FORMS = "a GGUF file, a folder with config.json, a hub id (ORG/NAME, or ORG/NAME:FILE.gguf) or demo"


def resolve_source(source: str, config: CheckpointConfig, progress: Progress | None = None) -> Path:
    """The file or folder that `source` means; what is not here is downloaded into the cache. Blocks.

    In order:
        1. demo: the demo model.
        2. A path that is there.
        3. Something that can only be a path: an error that names the nearest.
        4. ORG/NAME or ORG/NAME:FILE.gguf: the hub.

    Raises:
        InvalidConfig: none of these, or a revision of what has none.
        UnsupportedModel, CorruptCheckpoint: it is there, but no model that Headway reads.
        DownloadFailed: with what to do.
    """
    progress = progress or silent
    if source == "demo":  # 1
        _check_no_revision(source, config)
        return fetch_demo(config.cache_dir, progress)
    path = _as_path(source)
    if _is_there(path):  # 2
        _check_no_revision(source, config)
        check_path(path)
        return path
    hub = parse_hub_source(source)
    if hub is None or _is_meant_as_path(source):  # 3
        raise InvalidConfig(f"no model {source!r}: {_near_miss(path)}; give {_FORMS}", param="model")
    return fetch_from_hub(hub, config.cache_dir, config.revision, progress)  # 4


def _check_no_revision(source: str, config: CheckpointConfig) -> None:
    if config.revision is not None:
        raise InvalidConfig(
            f"--revision {config.revision} is for a hub repository, and {source} is none: leave it out",
            param="revision",
        )


def _as_path(source: str) -> Path:
    if not source or "\0" in source:
        raise InvalidConfig(f"no model {source!r}; give {_FORMS}", param="model")
    try:
        return Path(source).expanduser()
    except RuntimeError as error:
        raise InvalidConfig(f"no model {source!r}: {error}", param="model") from error


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that no file can have, a folder that is closed to us
        raise InvalidConfig(f"no model {str(path)[:200]!r}: {error.strerror}", param="model") from error


def _is_meant_as_path(source: str) -> bool:
    """A GGUF file of a repository has a colon before its name; a path that ends so has none."""
    return source.startswith(("/", "./", "../", "~")) or (source.endswith(".gguf") and ":" not in source)


def _near_miss(path: Path) -> str:
    """What is there instead, as far as the path leads."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError as error:
        return f"{path.parent} cannot be read ({error.strerror})"
    close = get_close_matches(path.name, names, 3, 0.6)
    ggufs = [name for name in names if name.endswith(".gguf")][:3]
    if found := close or ggufs:
        return f"there is no such file, but {', '.join(found)} in {path.parent}"
    return "there is no such file or folder"
