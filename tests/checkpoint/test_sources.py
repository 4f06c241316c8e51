import hashlib
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoint.http_stand_in import Answer, StandIn
from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.demo import demo_path
from headway.checkpoint.sources import fetch_source, resolve_source
from headway.config import CheckpointConfig
from headway.errors import CorruptCheckpoint, DownloadFailed, HeadwayError, InvalidConfig, UnsupportedModel


class Bomb:
    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return exit, (1,)


def resolve(source: str | Path, cache_dir: Path = Path("/nowhere")) -> Path:
    return resolve_source(str(source), CheckpointConfig(cache_dir=cache_dir))


def fill(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Bomb()) if name.endswith((".bin", ".pt", ".pth")) else b"{}")


def test_a_gguf_file_is_known_by_its_name_or_by_its_first_bytes(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf()
    assert resolve(path) == path
    blob = path.rename(path.with_name("sha256-0123"))
    assert resolve(blob) == blob
    assert open_checkpoint(blob).format == "gguf"


def test_a_folder_with_config_and_weights_is_itself(tmp_path: Path) -> None:
    fill(tmp_path, "config.json", "model.safetensors", "pytorch_model.bin")
    assert resolve(tmp_path) == tmp_path


def test_a_path_may_start_at_the_home_folder_or_here(
    write_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf()
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.chdir(path.parent)
    assert resolve("~/model.gguf") == path
    assert resolve("model.gguf") == Path("model.gguf")


def test_demo_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.checkpoint.sources.fetch_demo", lambda cache_dir, progress: demo_path(cache_dir))
    assert resolve("demo", tmp_path) == tmp_path / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_a_revision_of_what_has_none_is_refused(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    for source in ("demo", str(write_gguf())):
        with pytest.raises(InvalidConfig, match=r"--revision v2 is for a hub repository"):
            resolve_source(source, CheckpointConfig(cache_dir=tmp_path, revision="v2"))


NEAR_MISSES: list[tuple[tuple[str, ...], str, type[HeadwayError], str]] = [
    (("model.gguf",), "./modle.gguf", InvalidConfig, "no such file, but model.gguf in"),
    (("other.gguf",), "./zzz", InvalidConfig, "no such file, but other.gguf in"),
    ((), "./x/y/z.gguf", InvalidConfig, "there is no folder .*x/y"),
    ((), "gpt2", InvalidConfig, r"no such file or folder; give a GGUF file, .*hub id.* or demo"),
    ((), "", InvalidConfig, "give a GGUF file"),
    ((), "a\0b", InvalidConfig, "give a GGUF file"),
    ((), "x" * 5000, InvalidConfig, "File name too long"),
    ((), "Demo", InvalidConfig, "or demo"),
    (("m/a.gguf",), "m", UnsupportedModel, "no config.json, but GGUF files: give one of a.gguf"),
    (("m/a.txt",), "m", UnsupportedModel, "no config.json"),
    (("m/config.json", "m/pytorch_model.bin"), "m", UnsupportedModel, "pickle file.*headway convert"),
    (("m/config.json", "m/w.safetensors"), "m", UnsupportedModel, "w.safetensors has another name"),
    (("m/config.json",), "m", UnsupportedModel, "neither model.safetensors nor"),
    (("model.pt",), "model.pt", UnsupportedModel, "pickle file.*headway convert"),
    (("m.safetensors",), "m.safetensors", UnsupportedModel, "give the folder"),
    (("notes.txt",), "notes.txt", UnsupportedModel, "neither a GGUF file nor a folder"),
]


@pytest.mark.parametrize(("files", "source", "error", "words"), NEAR_MISSES)
def test_what_is_no_model_says_what_is_there_instead(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[str, ...],
    source: str,
    error: type[HeadwayError],
    words: str,
) -> None:
    fill(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        resolve(source)


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.bin", "model.ckpt", "model.pkl"])
def test_pickle_is_refused_without_being_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UnsupportedModel, match=r"can run code.*headway convert"):
        open_checkpoint(tmp_path / name)


def test_what_is_not_there_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="is not there"):
        open_checkpoint(tmp_path / "gone.gguf")


class TestOtherForms:
    """Archives, addresses and checks of files, whatever the framework."""

    def fetch(self, source: str | Path, tmp_path: Path, **fields: str) -> Path:
        return fetch_source(str(source), CheckpointConfig(cache_dir=tmp_path / "cache"), **fields)

    def test_an_archive_here_and_on_a_server(self, tmp_path: Path, stand_in: StandIn) -> None:
        with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
            archive.writestr("m/a.txt", "1")
            archive.writestr("m/b.txt", "2")
        body = (tmp_path / "m.zip").read_bytes()
        stand_in.answers["/x/m.zip"] = Answer(body)
        digest = hashlib.sha256(body).hexdigest()
        here = self.fetch(tmp_path / "m.zip", tmp_path)
        assert (
            here == self.fetch(f"{stand_in.url}/x/m.zip", tmp_path) == self.fetch(f"file://{tmp_path}/m.zip", tmp_path)
        )
        assert here == self.fetch(f"{stand_in.url}/x/m.zip", tmp_path, sha256=digest)
        assert sorted(path.name for path in here.iterdir()) == ["a.txt", "b.txt"]

    def test_a_sha256_is_of_one_file(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_bytes(b"x")
        good = hashlib.sha256(b"x").hexdigest()
        assert self.fetch(tmp_path / "m.onnx", tmp_path, sha256=good) == tmp_path / "m.onnx"
        with pytest.raises(DownloadFailed, match=f"must have {'0' * 64}"):
            self.fetch(tmp_path / "m.onnx", tmp_path, sha256="0" * 64)
        with pytest.raises(InvalidConfig, match="is a folder"):
            self.fetch(tmp_path, tmp_path, sha256=good)
        with pytest.raises(InvalidConfig, match="leave sha256 out"):
            self.fetch("demo", tmp_path, sha256=good)

    def test_a_scheme_that_is_not_known(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfig, match="ftp:// is not known"):
            self.fetch("ftp://host/x", tmp_path)
        with pytest.raises(InvalidConfig, match="no folder"):
            self.fetch(f"file://{tmp_path}/none/x", tmp_path)
