"""`headway models`: on a database of its own, and on a running server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import run
from headway.config import ServerConfig
from headway.core.catalog import CatalogEntry
from headway.database.catalog import DatabaseCatalog
from headway.server.app import make_app
from headway.server.run import Announcements, HttpServer
from service.catalog_rig import catalog_rig


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the database that the commands change without another word."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return f"sqlite:///{tmp_path}/data/headway/catalog.db"


class Commands:
    """Runs them, and gives what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str, fails: str = "") -> str:
        code = run(["models", *args])
        out, err = self._capsys.readouterr()
        assert code == (2 if fails else 0), err
        assert fails in err
        assert "Traceback" not in err
        return out


@pytest.fixture
def models(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_from_the_first_to_the_last(url: str, models: Commands, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(b"x")
    assert models("list") == ""
    assert models("add", "demo", "--alias", "chat", "--option", "max_model_len=512", "--pin").startswith("added demo")
    out = models(
        "add", str(tmp_path / "tiny.onnx"), "--framework", "onnx", "--type", "image", "--version", "1",
        "--option", "threads=2", "--option", "labels=[\"a\"]", "--expected-memory", "1GiB", "--idle-timeout", "5m",
        "--sha256", "0" * 64, "--watch", fails="leave version out",
    )  # fmt: skip
    models(
        "add", str(tmp_path / "tiny.onnx"), "--framework", "onnx", "--type", "image", "--version", "1",
        "--option", "threads=2", "--option", "labels=[\"a\"]", "--expected-memory", "1GiB", "--idle-timeout", "5m",
    )  # fmt: skip
    assert not out
    (tiny, demo) = sorted(DatabaseCatalog(url).read()[0].entries.values(), key=lambda each: each.id, reverse=True)
    assert (demo.aliases, demo.options, demo.is_pinned, demo.source) == (
        ("chat",),
        {"max_model_len": 512},
        True,
        "demo",
    )
    assert tiny == CatalogEntry(
        id="tiny", version="1", framework="onnx", type="image-classification", source=str(tmp_path / "tiny.onnx"),
        options={"threads": 2, "labels": ["a"]}, expected_bytes=2**30, idle_timeout_s=300.0,
    )  # fmt: skip
    lines = models("list").splitlines()
    assert lines[0].split() == ["MODEL", "MEMORY", "TYPE", "FRAMEWORK", "SOURCE"]
    assert lines[1].split() == ["demo", "text-generation", "headway", "demo"]
    assert lines[2].split()[:4] == ["tiny@1", "default", "1,024", "MiB"]
    assert json.loads(models("show", "tiny"))["idle_timeout_s"] == 300.0
    models("set", "tiny@1", "description=small", 'aliases=["t"]')
    assert DatabaseCatalog(url).read()[0].find("tiny").aliases == ("t",)
    models("unpin", "demo")
    assert not DatabaseCatalog(url).read()[0].find("demo").is_pinned
    models("pin", "demo")
    models("remove", "demo")
    models("remove", "demo", fails="the catalog has no model 'demo'")


def test_versions_and_the_way_back(url: str, models: Commands) -> None:
    for version in ("1", "2"):
        models("add", "org/name", "--version", version)
    models("add", "org/name", "--version", "3", "--no-default")
    default = DatabaseCatalog(url).read()[0].find
    assert default("org/name").version == "2"
    models("default", "org/name@3")
    assert default("org/name").version == "2"  # of the book as it was
    assert DatabaseCatalog(url).read()[0].find("org/name").version == "3"
    assert "org/name is 2 again" in models("rollback", "org/name")
    assert "org/name is 1 again" in models("rollback", "org/name")
    models("rollback", "org/name", fails="nothing to go back to")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_is_exported_is_imported(url: str, models: Commands, tmp_path: Path, form: str) -> None:
    models("add", "demo", "--alias", "x")
    models("add", "org/name", "--version", "1.0")
    file = tmp_path / f"models.{form}"
    models("export", str(file))
    assert models("export", "--format", form).rstrip() == file.read_text().rstrip()
    before = DatabaseCatalog(url).read()[0]
    other = f"sqlite:///{tmp_path}/other.db"
    assert "added 2, replaced 0" in models("import", str(file), "--database-url", other)
    assert "added 0, replaced 2" in models("import", str(file), "--database-url", other)
    assert DatabaseCatalog(other).read()[0] == before


def test_the_plain_form_imports_as_it_is(url: str, models: Commands, tmp_path: Path) -> None:
    entry = {"id": "m", "name": "M", "type": "text", "framework": "transformers", "version": "1.0", "description": "d"}
    (tmp_path / "models.json").write_text(json.dumps({"models": [entry]}))
    models("import", str(tmp_path / "models.json"))
    found = DatabaseCatalog(url).read()[0].find("m")
    assert (found.type, found.name, found.version, found.source) == ("text-classification", "M", "1.0", "m")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("add", "/nowhere/x.gguf"), "there is no file or folder /nowhere/x.gguf"),
        (("add", "demo", "--id", "../x"), "id is '../x'"),
        (("add", "demo", "--framework", "nonsense"), "framework is 'nonsense'"),
        (("add", "demo", "--option", "max_model_ln=1"), "did you mean max_model_len?"),
        (("add", "demo", "--option", "x"), "is not KEY=VALUE"),
        (("add", "demo", "--expected-memory", "much"), "'much'"),
        (("list", "--database-url", "mysql://h/x"), "Headway knows SQLite and PostgreSQL"),
        (("list", "--url", "http://127.0.0.1:1"), "nobody answers at http://127.0.0.1:1"),
        (("list", "--url", "x", "--database-url", "y"), "name two places"),
        (("load", "m", "--url", "http://127.0.0.1:1"), "is `headway serve` running there?"),
        (("import", "/nowhere.json"), "cannot be read"),
        (("export", "/nowhere/x.json"), "cannot be written"),
        (("show", "nobody"), "has no model 'nobody'"),
        (("set", "nobody", "x=1"), "has no model 'nobody'"),
        (("set", "there", "nonsense=1"), "the entry has 'nonsense', which is no field"),
        (("set", "there", "device=3"), "device is 3"),
    ],
)
def test_a_callers_mistake_is_one_line(url: str, models: Commands, args: tuple[str, ...], words: str) -> None:
    models("add", "demo", "--id", "there")
    models(*args, fails=words)


@asynccontextmanager
async def listening_on(rig: Any, config: ServerConfig) -> AsyncIterator[str]:
    """A server of the rig's catalog: its address."""
    listening = asyncio.get_running_loop().create_future()
    server = HttpServer(make_app(rig.service, config), Announcements(on_listening=listening.set_result))
    server._state.catalog = rig.catalog
    serving = asyncio.create_task(server.serve())
    try:
        yield await listening
    finally:
        server.stop()
        await serving


async def test_a_running_server_is_told_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    commands = Commands(capsys)
    async with catalog_rig() as rig, listening_on(rig, ServerConfig(port=0)) as url:

        async def call(*args: str, fails: str = "") -> str:
            return await asyncio.to_thread(commands, *args, "--url", url, fails=fails)

        await call("add", "first", "--id", "m", "--version", "1")
        await call("add", "second", "--id", "m", "--version", "2")
        assert "m is ready" in await call("load", "m")
        assert await rig.ask("m") == "second"
        rows = [line.split()[:2] for line in (await call("list")).splitlines()[1:]]
        assert rows == [["m", "ready"], ["m@1", "cold"]]
        assert "m is cold" in await call("unload", "m")
        assert "m is 1 again" in await call("rollback", "m")
        assert await rig.ask("m") == "first"
        await call("set", "m", "description=x")
        listed: dict[str, Any] = json.loads(await call("list", "--json"))
        assert [model["description"] for model in listed["models"]] == ["x", ""]
        assert json.loads(await call("export"))["models"][0]["description"] == "x"
        for name in ("m?x", "m#x", "x/../m", "m%40", "m/", ""):
            await call("remove", name, fails="model")
        assert len(json.loads(await call("export"))["models"]) == 2
        await call("remove", "m")
        await call("load", "m", fails="there is no model 'm'")
        await call("add", "x", "--id", "m", "--option", "nonsense=1", fails="nonsense")


async def test_a_server_with_admin_keys_is_sent_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServerConfig(port=0, api_keys=("user",), admin_api_keys=("admin", "other"))
    commands = Commands(capsys)
    async with catalog_rig(CatalogEntry(id="m", source="first")) as rig, listening_on(rig, config) as url:

        async def call(*args: str, fails: str = "") -> str:
            return await asyncio.to_thread(commands, *args, "--url", url, fails=fails)

        await call("remove", "m", fails="give --api-key, or set HEADWAY_API_KEY")
        monkeypatch.setenv("HEADWAY_API_KEY", "user")
        await call("remove", "m", fails="set HEADWAY_ADMIN_API_KEY")
        await call("export", fails="set HEADWAY_ADMIN_API_KEY")
        await asyncio.to_thread(run, ["top", "--once", "--url", url])
        assert "set HEADWAY_ADMIN_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("HEADWAY_ADMIN_API_KEY", "admin,other")
        assert json.loads(await call("export"))["models"][0]["id"] == "m"
        await call("remove", "m", "--api-key", "user", fails="set HEADWAY_ADMIN_API_KEY")
        assert await asyncio.to_thread(run, ["top", "--once", "--url", url]) == 0
        assert "model=m" in capsys.readouterr().out
        monkeypatch.delenv("HEADWAY_ADMIN_API_KEY")
        await call("remove", "m", "--api-key", "other")
        assert not rig.catalog.entries
