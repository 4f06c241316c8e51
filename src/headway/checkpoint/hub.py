"""Downloads a model of a hub repository into huggingface_hub's cache: the files that are needed and no others.

The endpoint (HF_ENDPOINT), the token (HF_TOKEN) and offline mode (HF_HUB_OFFLINE) are huggingface_hub's own. Without a
network a repository that was fetched before is served from the cache. No pickle and no code is fetched.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.checkpoint.checkpoint import INDEX_NAME, PICKLE_SUFFIXES, WEIGHTS_NAME
from headway.checkpoint.fields import Fields
from headway.checkpoint.gguf_split import sibling_names
from headway.checkpoint.progress import Progress
from headway.errors import CorruptCheckpoint, DownloadFailed, UnsupportedModel

_SOURCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:\\]+))?")
_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
_VOCABULARY_FILES = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
"""Fetched where there is no tokenizer.json."""
_MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository, and which of its files where it is not the whole model."""

    repo: str
    file: str | None = None
    """A GGUF file of the repository, or a word in just one's name: Q4_0."""


def parse_hub_source(source: str) -> HubSource | None:
    """ORG/NAME or ORG/NAME:FILE; None for what is neither."""
    match = _SOURCE.fullmatch(source)
    if match is None or any(part.startswith((".", "-")) for part in match["repo"].split("/")):
        return None
    return HubSource(match["repo"], match["file"])


def fetch_from_hub(source: HubSource, cache_dir: Path, revision: str | None, progress: Progress) -> Path:
    """The folder, or the GGUF file, in the cache.

    Raises DownloadFailed: no such repository or revision, no permission, no network and nothing cached, a broken
    connection, a full disk. UnsupportedModel: the repository has no model that Headway reads.
    """
    with _translated(source.repo):
        repository = _Repository(source.repo, cache_dir, revision, progress)
        path = _fetch_model(repository, source)
        repository.remember()
        return path


def _fetch_model(repository: "_Repository", source: HubSource) -> Path:
    if source.file is not None:
        return _fetch_gguf(repository, _choose_gguf(source, repository.names))
    if WEIGHTS_NAME in repository.names or INDEX_NAME in repository.names:
        return _fetch_folder(repository)
    ggufs = _models(repository.names)
    if len(ggufs) == 1:
        return _fetch_gguf(repository, ggufs[0])
    raise UnsupportedModel(f"{source.repo} {_near_miss(source.repo, repository.names, ggufs)}")


def _fetch_folder(repository: "_Repository") -> Path:
    if "config.json" not in repository.names:
        raise UnsupportedModel(f"{repository.repo} has no config.json")
    has_all = "tokenizer.json" in repository.names
    for name in _TEXT_FILES if has_all else (*_TEXT_FILES, *_VOCABULARY_FILES):
        if name in repository.names:
            repository.fetch(name)
    config = repository.fetch("config.json")
    if WEIGHTS_NAME in repository.names:
        repository.fetch(WEIGHTS_NAME)
        return config.parent
    weight_map = Fields.of_json(repository.fetch(INDEX_NAME)).mapping("weight_map")
    for name in sorted({str(name) for name in weight_map.values()}):
        if not name.endswith(".safetensors"):
            raise UnsupportedModel(f"{repository.repo}: {INDEX_NAME} names {name[:100]!r}, not a safetensors file")
        repository.fetch(name)
    return config.parent


def _models(names: Iterable[str]) -> list[str]:
    """The GGUF files, of a model in parts the first."""
    return [name for name in names if name.endswith(".gguf") and sibling_names(name)[0] == name]


def _fetch_gguf(repository: "_Repository", name: str) -> Path:
    """The file, and with one part of a model all others."""
    names = sibling_names(name)
    if lacking := [other for other in names if other not in repository.names]:
        raise UnsupportedModel(f"{repository.repo} has {name}, but not its part {lacking[0]}")
    paths = [repository.fetch(other) for other in names]
    return paths[names.index(name)]


def _choose_gguf(source: HubSource, names: Mapping[str, int | None]) -> str:
    wanted = source.file or ""
    if wanted in names:
        if not wanted.endswith(".gguf"):
            raise UnsupportedModel(
                f"{source.repo}: {wanted!r} is not a GGUF file; give {source.repo} for the whole model"
            )
        return wanted
    ggufs = _models(names)
    patterns = [f"*[-._]{wanted.lower()}{end}" for end in (".gguf", "-00001-of-*.gguf")]
    found = [name for name in ggufs if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)]
    found = found if wanted.isidentifier() else []
    if len(found) == 1:
        return found[0]
    raise UnsupportedModel(f"{source.repo} has no GGUF file {wanted!r}{_listed('; it has ', found or ggufs)}")


def _near_miss(repo: str, names: Mapping[str, int | None], ggufs: list[str]) -> str:
    if ggufs:
        return f"has several GGUF files: give one as {repo}:FILE{_listed(' of ', ggufs)}"
    if pickles := [name for name in names if name.endswith(PICKLE_SUFFIXES)]:
        return (
            f"has its weights only as pickle ({pickles[0]}), which can run code when it is read, and is refused: "
            "download it yourself and make a safetensors folder of it with `headway convert IN OUT`"
        )
    return f"has neither safetensors nor GGUF files{_listed('; it has ', list(names))}"


def _listed(before: str, names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{before}{', '.join(sorted(names)[:_MAX_LISTED])}{more}" if names else ""


class _Repository:
    """A repository at one commit: what it has, and fetching of it."""

    def __init__(self, repo: str, cache_dir: Path, revision: str | None, progress: Progress) -> None:
        from huggingface_hub import HfApi

        self.repo = repo
        self._cache_dir = _hub_cache(cache_dir)
        self._progress = progress
        self._endpoint = os.environ.get("HF_ENDPOINT") or None
        self._revision = revision or "main"
        self._cached: Path | None = None
        """Where there is no network: the folder that an earlier call filled."""
        try:
            info = HfApi(endpoint=self._endpoint).model_info(repo, revision=revision, files_metadata=True)
        except Exception as error:  # which classes say "no network" is decided in one place
            self._cached = self._find_cached() if _is_no_network(error) else None
            if self._cached is None:
                raise
            self.names = _files_under(self._cached)
            self._commit = self._cached.name
        else:
            self.names = {file.rfilename: file.size for file in info.siblings or [] if _is_plain(file.rfilename)}
            self._commit = info.sha or self._revision

    def fetch(self, name: str) -> Path:
        """The file in the cache, with as many bytes as the hub says; fetched once more where it has others."""
        if name not in self.names:
            raise CorruptCheckpoint(f"{self.repo} has no file {name[:200]!r}, which its own files name")
        if self._cached is not None:
            return self._cached / name
        path, num_bytes = self._download(name, is_again=False), self.names[name]
        if num_bytes is None or path.stat().st_size == num_bytes:
            return path
        path = self._download(name, is_again=True)
        found = path.stat().st_size
        if found != num_bytes:
            # What is in the cache is not looked at again: it must not stay.
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise DownloadFailed(
                f"{self.repo}: {name} came with {found} bytes and has {num_bytes}, twice in a row: check HF_ENDPOINT, "
                "or what stands between"
            )
        return path

    def _download(self, name: str, *, is_again: bool) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(
            hf_hub_download(
                self.repo,
                name,
                revision=self._commit,
                cache_dir=self._cache_dir,
                endpoint=self._endpoint,
                force_download=is_again,
                tqdm_class=_bar_of(self._progress, f"downloading {name}", self.names[name]),
            )
        )

    def remember(self) -> None:
        """Notes which commit the revision was, as huggingface_hub does, so that it is found without a network."""
        if self._cached is None and self._commit != self._revision and _is_plain(self._revision):
            ref = self._folder() / "refs" / self._revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            part = ref.with_name(f"{ref.name}.{os.getpid()}.part")
            part.write_text(self._commit, encoding="utf-8")
            part.replace(ref)

    def _folder(self) -> Path:
        """Of the repository in the cache: refs/REVISION holds a commit, snapshots/COMMIT its files."""
        return self._cache_dir / f"models--{self.repo.replace('/', '--')}"

    def _find_cached(self) -> Path | None:
        if not _is_plain(self._revision):
            return None
        ref = self._folder() / "refs" / self._revision
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else self._revision
        snapshot = self._folder() / "snapshots" / commit
        return snapshot if snapshot.is_dir() else None


def _files_under(folder: Path) -> dict[str, int | None]:
    return {str(path.relative_to(folder)): None for path in folder.rglob("*") if path.is_file()}


def _hub_cache(cache_dir: Path) -> Path:
    """The user's own hub cache where one is configured, else a folder of ours."""
    if home := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(home).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return cache_dir / "hub"


def _is_plain(name: str) -> bool:
    """Whether the name stays inside the folder that it is put in."""
    return not name.startswith("/") and "\\" not in name and ".." not in name.split("/")


def _bar_of(progress: Progress, phase: str, total_bytes: int | None) -> Any:
    """A class that huggingface_hub takes for its progress bar's (tqdm's interface, as much as it uses)."""

    class Bar:
        def __init__(self, *_: Any, total: int | None = None, initial: int = 0, **__: Any) -> None:
            self.n, self.total = initial, total or total_bytes

        def update(self, num_bytes: float | None = 1) -> None:
            self.n += int(num_bytes or 0)
            progress(phase, self.n, self.total)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: Any) -> None:
            self.close()

        def close(self) -> None:
            return

        def refresh(self, *_: Any, **__: Any) -> None:
            return

        set_description = set_postfix_str = reset = refresh
        # That these exist makes a transfer in chunks report to one bar, in bytes of the file, and not to two.
        update_transfer = set_transfer_postfix_str = refresh

    return Bar


def _is_no_network(error: Exception) -> bool:
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled | httpx2.TransportError)


@contextmanager
def _translated(repo: str) -> Iterator[None]:
    """huggingface_hub's and the system's errors as DownloadFailed with what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadFailed(f"{repo} asks for permission: accept its terms on the hub and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadFailed(
            f"the hub has no model {repo}, or it is private: check the name, or set HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadFailed(f"{repo} has no such revision: check --revision ({_first_line(error)})") from error
    except errors.HFValidationError as error:
        raise DownloadFailed(f"{repo!r} is no name of a hub repository: {_first_line(error)}") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, httpx2.TransportError) as error:
        raise DownloadFailed(
            f"{repo} is not in the cache and the hub cannot be reached ({_first_line(error)}): check the network and "
            "HF_ENDPOINT, or give a folder"
        ) from error
    except (errors.HfHubHTTPError, errors.XetDownloadError, httpx2.HTTPError) as error:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            raise DownloadFailed(f"the hub does not let you read {repo}: set HF_TOKEN") from error
        raise DownloadFailed(f"the hub answered for {repo}: {_first_line(error)}; try again later") from error
    except OSError as error:
        raise DownloadFailed(
            f"{repo} could not be stored: {error}; make room, or choose another --cache-dir"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
