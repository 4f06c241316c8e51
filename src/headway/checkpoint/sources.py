"""What a user may call a model, made into a path: demo, a file, folder or archive, an address, a hub repository."""

from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headway.checkpoint.archives import is_archive, unpack
from headway.checkpoint.cache_folder import sha256_of
from headway.checkpoint.checkpoint import check_path
from headway.checkpoint.demo import fetch_demo
from headway.checkpoint.hub import fetch_from_hub, parse_hub_source
from headway.checkpoint.object_store import fetch_object, is_object_store
from headway.checkpoint.progress import Progress, silent
from headway.checkpoint.web_file import fetch_web_file, shown_address
from headway.config import CheckpointConfig
from headway.errors import DownloadFailed, InvalidConfig

_FORMS = (
    "a GGUF file, a folder with config.json, an archive of one, a hub id (ORG/NAME, or ORG/NAME:FILE.gguf), an "
    "https://, s3:// or gs:// address, or demo"
)


def resolve_source(
    source: str, config: CheckpointConfig, progress: Progress | None = None, *, sha256: str | None = None
) -> Path:
    """The file or folder of a language model or encoder that `source` means (fetch_source), after a first look at it.

    Raises as fetch_source(), and UnsupportedModel, CorruptCheckpoint: it is there, but no model that Headway reads.
    """
    path = fetch_source(source, config, progress, sha256=sha256)
    if source != "demo":
        check_path(path)
    return path


def fetch_source(
    source: str, config: CheckpointConfig, progress: Progress | None = None, *, sha256: str | None = None
) -> Path:
    """The file or folder that `source` means; what is not here is downloaded into the cache, and unpacked. Blocks.

    In order:
        1. demo: the demo model.
        2. https://, s3://, gs://, file://: fetched.
        3. A path that is there.
        4. Something that can only be a path: an error that names the nearest.
        5. ORG/NAME or ORG/NAME:FILE.gguf, with or without hf:// before it: the hub.

    Args:
        sha256: what the file, or the archive, has to have.

    Raises:
        InvalidConfig: none of these, a revision of what has none, a sha256 of what is no one file.
        CorruptCheckpoint: an archive that is damaged or made to do harm; a file with another sha256.
        DownloadFailed: with what to do.
    """
    progress = progress or silent
    scheme, separator, _ = source.partition("://")
    if source == "demo":  # 1
        _check_alone(source, config, sha256)
        return fetch_demo(config.cache_dir, progress)
    if separator and scheme != "hf":  # 2
        _check_no_revision(source, config)
        return _fetch_address(source, scheme, config, progress, sha256)
    path = _as_path(source)
    if _is_there(path):  # 3
        _check_no_revision(source, config)
        return _opened(path, config, progress, sha256)
    hub = parse_hub_source(source.removeprefix("hf://"))
    if hub is None or _is_meant_as_path(source):  # 4
        raise InvalidConfig(f"no model {source!r}: {_near_miss(path)}; give {_FORMS}", param="model")
    found = fetch_from_hub(hub, config.cache_dir, config.revision, progress)  # 5
    return _opened(found, config, progress, sha256) if sha256 is not None else found


def is_address(source: str) -> bool:
    """Whether it is fetched by its scheme."""
    return "://" in source


def _fetch_address(source: str, scheme: str, config: CheckpointConfig, progress: Progress, sha256: str | None) -> Path:
    if scheme in ("https", "http"):
        return _unpacked(fetch_web_file(source, config, progress, sha256), config, progress, sha256)
    if is_object_store(scheme):
        return _opened(fetch_object(source, config, progress), config, progress, sha256)
    if scheme == "file":
        path = _as_path(unquote(urlsplit(source).path))
        if not _is_there(path):
            raise InvalidConfig(f"no model {source!r}: {_near_miss(path)}", param="model")
        return _opened(path, config, progress, sha256)
    raise InvalidConfig(f"no model {shown_address(source)!r}: {scheme}:// is not known; give {_FORMS}", param="model")


def _opened(path: Path, config: CheckpointConfig, progress: Progress, sha256: str | None) -> Path:
    """After its sha256 was found right; an archive unpacked."""
    if sha256 is not None:
        _check_sha256(path, sha256, progress)
    return _unpacked(path, config, progress, sha256)


def _unpacked(path: Path, config: CheckpointConfig, progress: Progress, sha256: str | None) -> Path:
    if path.is_file() and is_archive(path.name):
        return unpack(path, config.cache_dir, config.max_source_bytes, progress, sha256)
    return path


def _check_sha256(path: Path, sha256: str, progress: Progress) -> None:
    if not path.is_file():
        raise InvalidConfig(f"{path} is a folder, and a sha256 is of one file: leave sha256 out", param="sha256")
    found = sha256_of(path, progress)
    if found != sha256:
        raise DownloadFailed(f"{path} has sha256 {found}, and must have {sha256}: it is another file, or was changed")


def _check_alone(source: str, config: CheckpointConfig, sha256: str | None) -> None:
    _check_no_revision(source, config)
    if sha256 is not None:
        raise InvalidConfig(f"{source} is checked by a sha256 of its own: leave sha256 out", param="sha256")


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
