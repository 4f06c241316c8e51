"""s3:// and gs:// by their own protocols: s3fs and gcsfs against servers of them, keys, broken lines, new versions."""

import asyncio
import hashlib
import logging
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from headway.checkpoint.sources import fetch_source
from headway.config import CheckpointConfig, PoolConfig, ServerConfig
from headway.errors import DownloadFailed
from headway.server.app import lifespan_of, make_app
from headway.service.catalog import Catalog
from headway.service.catalog_store import MemoryStore
from headway.service.local import LocalService
from headway.service.watched_source import find_versions
from peers.frameworks import ENVIRONMENTS
from peers.object_store_servers import ENVIRONMENT, BreakingLine, StoreServer, breaking_line, running

pytestmark = pytest.mark.peers

KEY_ID, SECRET = "AKIAHEADWAYTEST00000", "the-secret-of-these-tests"
BIG_BYTES = 96 << 20
ECHO = "class Model:\n    def predict(self, value):\n        return [{version!r}, value]\n"


@pytest.fixture(scope="session")
def _libraries() -> None:
    """s3fs and gcsfs, behind what this environment has itself."""
    (folder,) = (ENVIRONMENTS / ENVIRONMENT / "lib").glob("python3.*/site-packages")
    sys.path.append(str(folder))


@pytest.fixture(scope="session")
def s3_server(_libraries: None) -> Iterator[StoreServer]:
    with running("s3") as server:
        yield server


@pytest.fixture(scope="session")
def gs_server(_libraries: None) -> Iterator[StoreServer]:
    with running("gs") as server:
        yield server


@pytest.fixture(params=["s3", "gs"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    found: StoreServer = request.getfixturevalue(f"{request.param}_server")
    point_at(found.kind, found.url, monkeypatch)
    return found


@pytest.fixture
def s3(s3_server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    point_at("s3", s3_server.url, monkeypatch)
    return s3_server


def point_at(kind: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries, at a server on this machine."""
    import gcsfs
    import s3fs

    if kind == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 3)
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    for library in (s3fs.S3FileSystem, gcsfs.GCSFileSystem):
        library.clear_instance_cache()


@pytest.fixture
def bucket(server: StoreServer) -> str:
    return new_bucket(server)


def new_bucket(server: StoreServer) -> str:
    name = f"headway-{uuid4().hex}"
    server.make_bucket(name)
    return name


def fetch(url: str, tmp_path: Path, sha256: str | None = None, **options: Any) -> Path:
    return fetch_source(url, CheckpointConfig(cache_dir=tmp_path / "cache", **options), sha256=sha256)


def test_a_folder_a_file_and_its_sha256(server: StoreServer, bucket: str, tmp_path: Path) -> None:
    files = {"m/config.json": b"{}", "m/model.safetensors": os.urandom(300_000), "m/a b/ü.json": b"[]"}
    files |= {"m/empty": b""} if server.kind == "s3" else {}  # of which the other server dies
    for name, content in files.items():
        server.put(f"{bucket}/{name}", content)
    server.put(f"{bucket}/m2/other", b"x")
    folder = fetch(f"{server.kind}://{bucket}/m", tmp_path)
    found = {f"m/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == files
    address = f"{server.kind}://{bucket}/m/model.safetensors"
    digest = hashlib.sha256(files["m/model.safetensors"]).hexdigest()
    assert fetch(address, tmp_path, digest).name == "model.safetensors"
    with pytest.raises(DownloadFailed, match=f"has sha256 {digest}, and must have {'0' * 64}"):
        fetch(address, tmp_path, "0" * 64)


def test_what_is_not_there_is_named(server: StoreServer, bucket: str, tmp_path: Path) -> None:
    for address in (f"{bucket}/none", f"no-such-{bucket}/m"):
        with pytest.raises(DownloadFailed, match=f"nothing at {server.kind}://{address}"):
            fetch(f"{server.kind}://{address}", tmp_path)


def test_a_changed_object_is_fetched_anew(server: StoreServer, bucket: str, tmp_path: Path) -> None:
    address = f"{server.kind}://{bucket}/m.gguf"
    server.put(f"{bucket}/m.gguf", b"old")
    before = fetch(address, tmp_path)
    server.put(f"{bucket}/m.gguf", b"new")  # as long as before
    after = fetch(address, tmp_path)
    assert (before.read_bytes(), after.read_bytes()) == (b"old", b"new")


def test_a_large_object_comes_in_pieces(server: StoreServer, bucket: str, tmp_path: Path) -> None:
    """Of 96 MiB at most three pieces of 16 MiB are in memory at a time: the library's, ours, and what it is made of."""
    content = os.urandom(1 << 20) * (BIG_BYTES >> 20)
    server.put(f"{bucket}/big.gguf", content)
    digest = hashlib.sha256(content).hexdigest()
    del content
    fetch_source_once = fetch(f"{server.kind}://{bucket}/big.gguf", tmp_path / "warm")  # imports are not measured
    assert fetch_source_once.stat().st_size == BIG_BYTES
    tracemalloc.start()
    try:
        path = fetch(f"{server.kind}://{bucket}/big.gguf", tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    assert peak < 56 << 20, peak


def test_versions_of_a_watched_address(server: StoreServer, bucket: str) -> None:
    for name in ("m/1/model.py", "m/10/a", "m/10/b/c", "m/v9/a", "m/notes.txt"):
        server.put(f"{bucket}/{name}", b"x")
    base = f"{server.kind}://{bucket}/m"
    before = find_versions(base + "/")
    assert [(each.version, each.source) for each in before] == [(it, f"{base}/{it}") for it in ("1", "v9", "10")]
    assert find_versions(base) == before
    server.put(f"{bucket}/m/10/b/c", b"y")
    after = find_versions(base)
    assert [one.stamp == other.stamp for one, other in zip(before, after, strict=True)] == [True, True, False]
    (plain,) = find_versions(f"{base}/v9")
    assert plain.source == f"{base}/v9"
    assert find_versions(f"{base}/none") == []


@pytest.fixture
def line(s3_server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakingLine]:
    """The way to S3."""
    with breaking_line(int(s3_server.url.rpartition(":")[2])) as line:
        point_at("s3", f"http://127.0.0.1:{line.port}", monkeypatch)
        yield line


def test_a_transfer_that_breaks_off_is_gone_on_with(s3_server: StoreServer, line: BreakingLine, tmp_path: Path) -> None:
    bucket, content = new_bucket(s3_server), os.urandom(3 << 20)
    s3_server.put(f"{bucket}/m.gguf", content)
    line.after_bytes, line.num_cuts = 1 << 20, 1
    assert fetch(f"s3://{bucket}/m.gguf", tmp_path).read_bytes() == content
    assert line.num_cuts == 0


def test_one_that_breaks_off_again_and_again_is_told_and_leaves_nothing(
    s3_server: StoreServer, line: BreakingLine, tmp_path: Path
) -> None:
    bucket, content = new_bucket(s3_server), os.urandom(3 << 20)
    s3_server.put(f"{bucket}/m.gguf", content)
    line.after_bytes, line.num_cuts = 1 << 20, 1000
    with pytest.raises(DownloadFailed, match=rf"s3://{bucket}/m.gguf could not be fetched: \w+: "):
        fetch(f"s3://{bucket}/m.gguf", tmp_path)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.name != ".lock"]
    line.num_cuts = 0
    assert fetch(f"s3://{bucket}/m.gguf", tmp_path).read_bytes() == content


def test_a_store_that_is_away_is_told(
    s3_server: StoreServer, line: BreakingLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with breaking_line(0) as gone:
        port = gone.port
    point_at("s3", f"http://127.0.0.1:{port}", monkeypatch)
    with pytest.raises(DownloadFailed, match="s3://bucket/m could not be fetched: EndpointConnectionError"):
        fetch("s3://bucket/m", tmp_path)


def test_what_is_changed_while_it_is_fetched_is_not_kept(server: StoreServer, bucket: str, tmp_path: Path) -> None:
    """Somebody writes between one file and the next."""
    for name in ("a", "b"):
        server.put(f"{bucket}/m/{name}", name.encode() * 1000)

    def write_once(what: str, done: int, total: int | None) -> None:
        if what == "downloading a":
            server.put(f"{bucket}/m/b", b"B" * 1000)

    with pytest.raises(DownloadFailed, match="was changed while it was fetched"):
        fetch_source(f"{server.kind}://{bucket}/m", CheckpointConfig(cache_dir=tmp_path), write_once)
    folder = fetch(f"{server.kind}://{bucket}/m", tmp_path)
    assert (folder / "b").read_bytes() == b"B" * 1000


class TestKeys:
    """A store that asks for them; they are nowhere to be read."""

    @pytest.fixture
    def guarded(self, s3: StoreServer) -> Iterator[str]:
        """A bucket that nobody may read: the server knows no key but that of a user without rights, `nobody`."""
        bucket = new_bucket(s3)
        s3.put(f"{bucket}/m/model.py", b"x")
        httpx2.post(f"{s3.url}/moto-api/reset-auth", content=b"0").raise_for_status()
        yield bucket
        httpx2.post(f"{s3.url}/moto-api/reset-auth", content=b"inf").raise_for_status()

    def test_a_key_that_the_store_does_not_know(self, guarded: str, tmp_path: Path) -> None:
        with pytest.raises(DownloadFailed, match="may not be read with the keys of this process") as error:
            fetch(f"s3://{guarded}/m", tmp_path)
        assert SECRET not in str(error.value.__cause__)
        assert SECRET not in error.value.message

    def test_a_watched_address_says_so(self, guarded: str) -> None:
        with pytest.raises(DownloadFailed, match="may not be read with the keys of this process"):
            find_versions(f"s3://{guarded}/m")

    def test_no_key_at_all(self, s3: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        point_at("s3", s3.url, monkeypatch)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(DownloadFailed, match=r"NoCredentialsError.*AWS_ACCESS_KEY_ID"):
            fetch("s3://bucket/m", tmp_path)


@asynccontextmanager
async def served(cache: Path) -> AsyncIterator[tuple[Catalog, httpx2.AsyncClient]]:
    """A server of a catalog, with real workers."""
    config = ServerConfig()
    service = LocalService([], PoolConfig(), config, CheckpointConfig(cache_dir=cache), keeps_first=False)
    catalog = Catalog(MemoryStore(), service, poll_s=3600)
    app = make_app(service, config, catalog)
    transport = httpx2.ASGITransport(app=app)
    async with (
        lifespan_of(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=120) as client,
    ):
        yield catalog, client


async def test_a_new_version_in_a_store_is_served_and_no_request_fails(
    server: StoreServer, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.put(f"{bucket}/m/1/model.py", ECHO.format(version="1").encode())
    entry = {"id": "m", "framework": "python", "type": "python", "source": f"{server.kind}://{bucket}/m", "watch": True}
    async with served(tmp_path) as (catalog, client):

        async def ask() -> Any:
            answer = await client.post("/predict", json={"model_id": "m", "input_data": "x"})
            assert answer.status_code == 200, answer.text
            return answer.json()["predictions"]

        assert (await client.post("/admin/models", json=entry)).status_code == 201
        assert await ask() == ["1", "x"]
        answers = [""]

        async def keep_asking() -> None:
            while answers[-1] != "2":
                answers.append((await ask())[0])

        asking = asyncio.create_task(keep_asking())
        server.put(f"{bucket}/m/2/model.py", ECHO.format(version="2").encode())
        for _ in range(2):
            await catalog.look()
            await catalog.settled()
        await asyncio.wait_for(asking, 60)
        assert answers == sorted(answers)
        server.put(f"{bucket}/m/3/model.py", b"raise RuntimeError('broken')")
        for _ in range(2):
            await catalog.look()
            await catalog.settled()
        assert (await ask())[0] == "2"
        (told,) = (await client.get("/v1/models")).json()["data"]
        assert (told["state"], told["version"]) == ("ready", "2")
        assert "broken" in told["update_error"]
        texts = [
            (await client.get(path)).text for path in ("/v1/models", "/admin/models", "/admin/models/m", "/metrics")
        ]
    for text in [*texts, caplog.text]:
        assert SECRET not in text
        assert KEY_ID not in text


async def test_an_entry_whose_object_is_not_there_says_so_to_who_asks(
    server: StoreServer, bucket: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as (_, client):
        source = f"{server.kind}://{bucket}/none"
        await client.post("/admin/models", json={"id": "m", "framework": "python", "type": "python", "source": source})
        answer = await client.post("/admin/models/m/load")
        assert answer.status_code == 400
        assert f"there is nothing at {source}" in answer.text
