import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint import hub
from headway.checkpoint.hub import HubSource, parse_hub_source
from headway.checkpoint.sources import resolve_source
from headway.config import CheckpointConfig
from headway.errors import CorruptCheckpoint, DownloadFailed, HeadwayError, UnsupportedModel

REPO = "org/small-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights" * 1000,
    "pytorch_model.bin": b"pickle",
    "modeling_mine.py": b"raise SystemExit",
    "README.md": b"# small",
    "original/consolidated.00.pth": b"pickle",
}
INDEX = json.dumps({"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}).encode()
SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": INDEX,
    "model-1-of-2.safetensors": b"one",
    "model-2-of-2.safetensors": b"two",
    "consolidated.safetensors": b"the same again",
}


def put(stand_in: StandIn, files: dict[str, bytes], repo: str = REPO, revision: str = "main") -> None:
    """Answers as the hub does for a repository with these files."""
    siblings = [{"rfilename": name, "size": len(content), "blobId": "0" * 40} for name, content in files.items()]
    info = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0})
    for path in (f"/api/models/{repo}", f"/api/models/{repo}/revision/{revision}"):
        stand_in.answers[path] = Answer(info.encode(), headers={"Content-Type": "application/json"})
    for name, content in files.items():
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        stand_in.answers[f"/{repo}/resolve/{COMMIT}/{name}"] = Answer(content, headers=headers)


def refuse(stand_in: StandIn, status: int, code: str, repo: str = REPO) -> None:
    answer = Answer(b"{}", status, {"X-Error-Code": code, "X-Error-Message": "no"})
    stand_in.answers[f"/api/models/{repo}"] = stand_in.answers[f"/api/models/{repo}/revision/v9"] = answer


@pytest.fixture(autouse=True)
def _hub_settings(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", stand_in.url)


def resolve(cache_dir: Path, source: str = REPO, revision: str | None = None, progress: Any = None) -> Path:
    return resolve_source(source, CheckpointConfig(cache_dir=cache_dir, revision=revision), progress)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_repository_becomes_a_folder_without_pickle_and_code(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, WHOLE)
    seen: list[tuple[str, int, int | None]] = []
    folder = resolve(tmp_path, progress=lambda *progress: seen.append(progress))
    text_files = {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert names(folder) == text_files | {"model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]
    assert tmp_path in folder.parents
    assert ("downloading model.safetensors", 7000, 7000) in seen
    assert not [line for line in stand_in.seen if "pytorch" in line or ".pth" in line or ".py" in line]


def test_a_second_call_downloads_nothing(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, WHOLE)
    folder = resolve(tmp_path)
    stand_in.seen.clear()
    assert resolve(tmp_path) == folder
    assert not [line for line in stand_in.seen if line.startswith("GET") and "/resolve/" in line]


def test_of_a_sharded_model_the_files_of_the_index_are_fetched(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, SHARDED)
    assert names(resolve(tmp_path)) == set(SHARDED) - {"consolidated.safetensors"}


def test_a_file_with_fewer_bytes_than_the_hub_says_does_not_stay_in_the_cache(
    tmp_path: Path, stand_in: StandIn
) -> None:
    put(stand_in, WHOLE)
    path = f"/{REPO}/resolve/{COMMIT}/model.safetensors"
    whole = stand_in.answers[path]
    stand_in.answers[path] = Answer(WHOLE["model.safetensors"][:-1], headers={"ETag": '"cut"', "X-Repo-Commit": COMMIT})
    size = len(WHOLE["model.safetensors"])
    with pytest.raises(DownloadFailed, match=f"model.safetensors came with {size - 1} bytes and has {size}, twice"):
        resolve(tmp_path)
    stand_in.answers[path] = whole
    folder = resolve(tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]
    # One that was damaged on the disk is fetched again too.
    (folder / "model.safetensors").resolve().write_bytes(b"")
    assert (resolve(tmp_path) / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]


def test_a_revision_is_asked_for(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, WHOLE, revision="v1")
    stand_in.answers.pop(f"/api/models/{REPO}")
    assert (resolve(tmp_path, revision="v1") / "config.json").is_file()


GGUFS = {"m.Q4_0.gguf": b"GGUF four", "m-Q8_0.gguf": b"GGUF eight", "sub/m.bf16.gguf": b"GGUF bf"}


@pytest.mark.parametrize(
    ("file", "content"),
    [("m.Q4_0.gguf", b"GGUF four"), ("Q8_0", b"GGUF eight"), ("q4_0", b"GGUF four"), ("sub/m.bf16.gguf", b"GGUF bf")],
)
def test_a_gguf_file_of_a_repository_is_fetched_alone(
    tmp_path: Path, stand_in: StandIn, file: str, content: bytes
) -> None:
    put(stand_in, GGUFS)
    assert resolve(tmp_path, f"{REPO}:{file}").read_bytes() == content
    assert len([line for line in stand_in.seen if line.startswith("GET") and "/resolve/" in line]) == 1


def test_older_vocabulary_files_are_fetched_where_there_is_no_tokenizer_json(tmp_path: Path, stand_in: StandIn) -> None:
    older = dict.fromkeys(("vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer.model"), b"{}")
    put(stand_in, WHOLE | older)
    assert not names(resolve(tmp_path / "both")) & set(older)
    stand_in.answers.clear()
    put(stand_in, {name: data for name, data in WHOLE.items() if name != "tokenizer.json"} | older)
    assert names(resolve(tmp_path / "older")) >= set(older)


SPLIT = {f"q/m-Q4_0-0000{number}-of-00002.gguf": f"GGUF {number}".encode() for number in (1, 2)}


@pytest.mark.parametrize("file", ["", ":q4_0", ":q/m-Q4_0-00001-of-00002.gguf"])
def test_of_a_model_in_parts_all_are_fetched(tmp_path: Path, stand_in: StandIn, file: str) -> None:
    put(stand_in, SPLIT | ({"m-Q8_0.gguf": b"GGUF"} if file else {}))
    path = resolve(tmp_path, REPO + file)
    assert path.name == "m-Q4_0-00001-of-00002.gguf"
    assert names(path.parent) == {"m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"}


def test_a_repository_that_lacks_a_part_is_refused(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, dict(list(SPLIT.items())[:1]))
    with pytest.raises(UnsupportedModel, match=r"but not its part q/m-Q4_0-00002-of-00002.gguf"):
        resolve(tmp_path, f"{REPO}:q4_0")


def test_the_only_gguf_file_needs_no_name(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, {"m.Q4_0.gguf": b"GGUF four", "README.md": b""})
    assert resolve(tmp_path).name == "m.Q4_0.gguf"


NEAR_MISSES: list[tuple[dict[str, bytes], str, type[HeadwayError], str]] = [
    (GGUFS, REPO, UnsupportedModel, "several GGUF files: give one as org/small-model:FILE of m-Q8_0.gguf"),
    (GGUFS, f"{REPO}:Q5_0", UnsupportedModel, "no GGUF file 'Q5_0'; it has m-Q8_0.gguf, m.Q4_0.gguf, sub/m.bf16.gguf"),
    (WHOLE, f"{REPO}:config.json", UnsupportedModel, "'config.json' is not a GGUF file"),
    ({"pytorch_model.bin": b""}, REPO, UnsupportedModel, "pickle.*headway convert"),
    ({"README.md": b""}, REPO, UnsupportedModel, "neither safetensors nor GGUF files; it has README.md"),
    ({}, REPO, UnsupportedModel, "neither safetensors nor GGUF files"),
    ({"model.safetensors": b""}, REPO, UnsupportedModel, "no config.json"),
    (
        {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "x.bin"}}'},
        REPO,
        UnsupportedModel,
        "'x.bin', not a safetensors file",
    ),
    (
        {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}'},
        REPO,
        CorruptCheckpoint,
        "no file '../x.safetensors'",
    ),
]


@pytest.mark.parametrize(("files", "source", "error", "words"), NEAR_MISSES)
def test_repositories_without_a_model_say_what_they_have(
    tmp_path: Path, stand_in: StandIn, files: dict[str, bytes], source: str, error: type[HeadwayError], words: str
) -> None:
    put(stand_in, files)
    with pytest.raises(error, match=words):
        resolve(tmp_path, source)


def test_names_that_lead_out_of_the_folder_are_not_there(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, {"../evil.gguf": b"GGUF", "/etc/evil.gguf": b"GGUF", "a\\evil.gguf": b"GGUF"})
    with pytest.raises(UnsupportedModel, match="neither"):
        resolve(tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "the hub has no model org/small-model, or it is private"),
        (401, "", "the hub does not let you read org/small-model: set HF_TOKEN"),
        (403, "GatedRepo", "accept its terms on the hub and set HF_TOKEN"),
        (404, "RevisionNotFound", "no such revision: check --revision"),
        (418, "", "the hub answered for org/small-model"),
    ],
)
def test_the_hubs_refusals_say_what_to_do(
    tmp_path: Path, stand_in: StandIn, status: int, code: str, words: str
) -> None:
    refuse(stand_in, status, code)
    with pytest.raises(DownloadFailed, match=words):
        resolve(tmp_path)


def test_without_a_network_what_is_cached_is_served_and_the_rest_is_a_clear_error(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(stand_in, SHARDED)
    folder = resolve(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert resolve(tmp_path) == folder
    with pytest.raises(DownloadFailed, match=r"org/other is not in the cache and the hub cannot be reached"):
        resolve(tmp_path, "org/other")


def test_a_download_that_breaks_off_leaves_no_file(tmp_path: Path, stand_in: StandIn) -> None:
    put(stand_in, WHOLE)
    weights = f"/{REPO}/resolve/{COMMIT}/model.safetensors"

    def broken(request: Any) -> Answer:
        answer = stand_in.answers["whole"]
        if request.command == "HEAD":
            return answer
        return Answer(b"busy", 500)

    stand_in.answers["whole"] = stand_in.answers[weights]
    stand_in.answers[weights] = broken
    with pytest.raises(DownloadFailed):
        resolve(tmp_path)
    assert not list(tmp_path.rglob("model.safetensors"))
    stand_in.answers[weights] = stand_in.answers["whole"]
    assert (resolve(tmp_path) / "model.safetensors").read_bytes() == WHOLE["model.safetensors"]


def test_a_full_disk_is_a_clear_error(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    put(stand_in, WHOLE)

    def full(*_: Any, **__: Any) -> str:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", full)
    with pytest.raises(DownloadFailed, match=r"No space left.*--cache-dir"):
        resolve(tmp_path)


def test_a_transfer_in_chunks_is_one_progress_in_bytes_of_the_file() -> None:
    seen: list[tuple[str, int, int | None]] = []
    bar = hub._bar_of(lambda *progress: seen.append(progress), "downloading a", None)
    with XetDownloadProgressReporter(reconstruction_desc="a", total=100, log_level=0, tqdm_class=bar) as reporter:
        for written, transferred in ((0, 20), (60, 70), (100, 80)):
            reporter.update_progress(
                SimpleNamespace(
                    total_bytes=100,
                    total_bytes_completed=written,
                    total_bytes_completion_rate=1.0,
                    total_transfer_bytes_completed=transferred,
                    total_transfer_bytes_completion_rate=1.0,
                )
            )
    assert seen == [("downloading a", 60, 100), ("downloading a", 100, 100)]


def test_a_hub_cache_that_the_user_has_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hub._hub_cache(tmp_path) == tmp_path / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "mine"))
    assert hub._hub_cache(tmp_path) == tmp_path / "mine" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "shared"))
    assert hub._hub_cache(tmp_path) == tmp_path / "shared"


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        ("org/name", HubSource("org/name")),
        ("org/na-me_1.5:a.gguf", HubSource("org/na-me_1.5", "a.gguf")),
        ("org/name:Q4_0", HubSource("org/name", "Q4_0")),
        ("name", None),
        ("a/b/c", None),
        ("../b", None),
        ("org/name:", None),
        ("org/", None),
        ("org/name with space", None),
    ],
)
def test_hub_ids_are_told_from_other_things(source: str, parsed: HubSource | None) -> None:
    assert parse_hub_source(source) == parsed
