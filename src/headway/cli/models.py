"""`headway models`: the catalog's entries, and what a running server does with them."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from headway.cli.catalog_admin import DEFAULT_URL, CatalogAdmin, ServerAdmin, StoreAdmin
from headway.cli.catalog_choice import open_database, read_file
from headway.cli.sizes import parse_bytes, parse_seconds
from headway.cli.terminal import note, say
from headway.errors import InvalidConfig

Name = Annotated[str, typer.Argument(metavar="NAME", help="An id, or ID@VERSION.")]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A file, folder or archive, demo, a hub id, or an https://, s3:// or gs:// address."
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Of the engine or predictor, as JSON or text; repeated."),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="A running server, instead of the database.")]
ServerUrl = Annotated[str, typer.Option("--url", metavar="URL", help="The running server.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="The server's admin key, or its key. Also HEADWAY_ADMIN_API_KEY, HEADWAY_API_KEY.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="The catalog's database. Also HEADWAY_DATABASE_URL. Default: catalog.db in ~/.local/share/headway.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
_ARCHIVE_ENDING = re.compile(r"(\.(gguf|onnx|zip|tar|tgz|tbz2|txz|gz|bz2|xz|py))+$", re.IGNORECASE)


def make() -> TyperGroup:
    """The commands."""
    app = typer.Typer(
        help="The catalog: models that `headway serve` loads when they are asked for.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )
    for name, function, words in (
        ("add", _add, "Add a model, or another version of one."),
        ("list", _list, "List the entries; with --url their states too."),
        ("show", _show, "Show an entry as JSON."),
        ("set", _set, "Change fields of an entry: KEY=VALUE, the value as JSON or text."),
        ("remove", _remove, "Remove an entry (ID@VERSION), or all versions of an id."),
        ("pin", _pin, "Load a model from the beginning, and never evict it."),
        ("unpin", _unpin, "Load it when it is asked for, and evict it when memory is wanted."),
        ("default", _default, "Let the id mean this version (ID@VERSION)."),
        ("rollback", _roll_back, "Let the id mean the version that it meant before."),
        ("import", _import, "Add or replace the entries of a JSON or YAML file; - is stdin."),
        ("export", _export, "Write all entries as JSON or YAML."),
        ("load", _load, "Load a model on a running server."),
        ("unload", _unload, "Unload a model of a running server once nothing uses it."),
    ):
        app.command(name, help=words)(function)
    return get_group(app)


def _admin(url: str | None, api_key: str | None, database_url: str | None) -> CatalogAdmin:
    if url is None:
        return StoreAdmin(open_database(database_url or os.environ.get("HEADWAY_DATABASE_URL") or None))
    if database_url is not None:
        raise InvalidConfig("--url and --database-url name two places: leave one of them out", param="url")
    return _server(url, api_key)


def _server(url: str, api_key: str | None) -> ServerAdmin:
    variables = (os.environ.get(name, "") for name in ("HEADWAY_ADMIN_API_KEY", "HEADWAY_API_KEY"))
    set_ones = (key for value in variables if (key := value.partition(",")[0].strip()))  # of several the first
    return ServerAdmin(url, api_key or next(set_ones, None))


def _add(
    source: Source,
    id_: Annotated[str | None, typer.Option("--id", metavar="ID", help="Default: made from SOURCE.")] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="VERSION", help="Beside others of the id.")
    ] = None,
    framework: Annotated[str | None, typer.Option("--framework", metavar="NAME", help="Default: headway.")] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="text, image, embedding, ...")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="For people.")] = None,
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="For people.")] = None,
    sha256: Annotated[str | None, typer.Option("--sha256", metavar="HEX", help="Of the file or archive.")] = None,
    alias: Annotated[list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name; repeated.")] = None,
    option: Pairs = None,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help="cpu, or cuda:N.")] = None,
    interpreter: Annotated[str | None, typer.Option("--interpreter", metavar="ENV", help="See headway env.")] = None,
    expected_memory: Annotated[
        str | None, typer.Option("--expected-memory", metavar="SIZE", help="While it is loaded; 2GiB.")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option("--idle-timeout", metavar="SECONDS", help="Unload it when it was not asked so long.")
    ] = None,
    pinned: Annotated[bool, typer.Option("--pin", help="Load it from the beginning, and never evict it.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Serve what is new in SOURCE as soon as it is there.")] = False,
    is_default: Annotated[bool, typer.Option("--default/--no-default", help="Let the id mean this version.")] = True,
    url: Url = None,
    api_key: Key = None,
    database_url: Database = None,
) -> None:
    from headway.service.catalog_form import read_entry

    fields: dict[str, Any] = {
        "id": id_ or _id_of(source),
        "source": _whole(source),
        "version": version,
        "framework": framework,
        "type": type_,
        "name": name,
        "description": description,
        "sha256": sha256,
        "aliases": alias,
        "options": dict(_pair(each) for each in option or ()),
        "device": device,
        "interpreter": interpreter,
        "expected_bytes": None if expected_memory is None else _number(parse_bytes, expected_memory),
        "idle_timeout_s": None if idle_timeout is None else _number(parse_seconds, idle_timeout),
        "pinned": pinned,
        "watch": watch,
        "default": is_default,
    }
    entry = read_entry(fields)
    admin = _admin(url, api_key, database_url)
    admin.add(entry)
    say(f"added {entry.key} ({entry.framework}, {entry.type}) to {admin.place}")
    if url is None:
        note("servers of this catalog have it within seconds; to start one: headway serve")


def _list(as_json: AsJson = False, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    from headway.service.catalog_form import entry_out

    admin = _admin(url, api_key, database_url)
    cards = admin.cards() if isinstance(admin, ServerAdmin) else None
    if as_json:
        listed = cards if cards is not None else [entry_out(entry) for entry in admin.entries()]
        say(json.dumps({"models": listed}, indent=2, ensure_ascii=False))
    elif cards is not None:
        rows = [(c["id"], c["state"], _size(c["memory_bytes"]), c["type"], c["framework"], c["root"]) for c in cards]
        _table(("MODEL", "STATE", "MEMORY", "TYPE", "FRAMEWORK", "SOURCE"), rows)
    else:
        entries = admin.entries()
        marks = {True: "default", False: ""}
        others = [(entry, marks[entry.is_default] if entry.version else "") for entry in entries]
        found = [
            (e.key, mark, _size(e.measured_bytes or e.expected_bytes), e.type, e.framework, e.source)
            for e, mark in others
        ]
        _table(("MODEL", "", "MEMORY", "TYPE", "FRAMEWORK", "SOURCE"), found)
    if not (cards or as_json or admin.entries()):
        note("there are none yet: headway models add demo")


def _show(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    from headway.core.catalog_book import Book
    from headway.service.catalog_form import entry_out

    book = Book().put(*_admin(url, api_key, database_url).entries())
    say(json.dumps(entry_out(book.find(name)), indent=2, ensure_ascii=False))


def _set(
    name: Name,
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help='description=New aliases=["x"]')],
    url: Url = None,
    api_key: Key = None,
    database_url: Database = None,
) -> None:
    _change(name, dict(_pair(each) for each in changes), url, api_key, database_url)


def _pin(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    _change(name, {"pinned": True}, url, api_key, database_url)


def _unpin(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    _change(name, {"pinned": False}, url, api_key, database_url)


def _default(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    _change(name, {"default": True}, url, api_key, database_url)


def _change(name: str, changes: dict[str, Any], url: str | None, api_key: str | None, database_url: str | None) -> None:
    _admin(url, api_key, database_url).update(name, changes)
    say(f"{name}: {', '.join(f'{key} is {json.dumps(value, ensure_ascii=False)}' for key, value in changes.items())}")


def _remove(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    _admin(url, api_key, database_url).remove(name)
    say(f"removed {name}")


def _roll_back(name: Name, url: Url = None, api_key: Key = None, database_url: Database = None) -> None:
    entry = _admin(url, api_key, database_url).roll_back(name)
    say(f"{entry.id} is {entry.version or 'the version before'} again")


def _import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON or YAML; - is stdin.")],
    url: Url = None,
    api_key: Key = None,
    database_url: Database = None,
) -> None:
    from headway.service.catalog_form import MAX_BYTES, read_entries

    text = sys.stdin.buffer.read(MAX_BYTES + 1) if str(file) == "-" else read_file(file)
    num_added, num_replaced = _admin(url, api_key, database_url).take(read_entries(text, place=str(file)))
    say(f"added {num_added}, replaced {num_replaced}")


def _export(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: stdout.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORM", help="json or yaml. Default: by FILE's ending, else json.")
    ] = None,
    url: Url = None,
    api_key: Key = None,
    database_url: Database = None,
) -> None:
    from headway.service.catalog_form import dump_entries

    chosen = form or ("yaml" if file is not None and file.suffix in (".yaml", ".yml") else "json")
    if chosen not in ("json", "yaml"):
        raise InvalidConfig(f"--format is {chosen!r}; it must be json or yaml", param="format")
    text = dump_entries(_admin(url, api_key, database_url).entries(), chosen)
    if file is None:
        say(text.rstrip("\n"))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"{file} cannot be written: {error.strerror}", param="file") from None


def _load(name: Name, url: ServerUrl = DEFAULT_URL, api_key: Key = None) -> None:
    card = _server(url, api_key).load(name)
    seconds = sum(phase["seconds"] for phase in card["phases"])
    say(f"{name} is ready, {_size(card['memory_bytes'])}; its load took {seconds:.1f} s")


def _unload(name: Name, url: ServerUrl = DEFAULT_URL, api_key: Key = None) -> None:
    card = _server(url, api_key).unload(name)
    say(f"{name} is {card['state']}")


def _whole(source: str) -> str:
    """A path as its absolute one: a server may run elsewhere. Raises InvalidConfig for one that is not there."""
    path = Path(source).expanduser()
    if source != "demo" and path.exists():
        return str(path.absolute())
    if source.startswith(("/", "./", "../", "~")):
        raise InvalidConfig(f"there is no file or folder {path}", param="source")
    return source


def _id_of(source: str) -> str:
    """What a model is called if nobody says it: a hub id as it is, else the last part of a path or address."""
    from headway.service.names import default_name

    if "://" in source:
        name = source.partition("?")[0].rstrip("/").rpartition("/")[2]
    else:
        name = default_name(source).partition(":")[0]
    return _ARCHIVE_ENDING.sub("", name) or name


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidConfig(f"{text!r} is not KEY=VALUE", param="option")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _number(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidConfig(f"{text!r}: {error}") from None


def _size(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 2**20:,.0f} MiB"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows] if rows else []:
        say("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
