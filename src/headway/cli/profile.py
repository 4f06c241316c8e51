"""`headway profile`: the next steps of a running server's model, as a trace file, and their time by op."""

import json
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from headway.cli.options import make_command, parameter, setting_options, split_settings
from headway.cli.terminal import note, say
from headway.cli.top import DEFAULT_URL
from headway.errors import InvalidConfig

_MAX_OPS_SHOWN = 20


def make() -> TyperCommand:
    """The command."""
    options = {
        "output": (Path, ("--output", "-o"), "FILE", "The trace. Default: trace.json."),
        "url": (str, ("--url",), "URL", f"The server. Default: {DEFAULT_URL}."),
        "model_name": (str, ("--model-name",), "NAME", "Its model. Default: the first."),
        "steps": (int, ("--steps",), "N", "Steps to record. Default: 20."),
        "timeout": (float, ("--timeout",), "SECONDS", "End with the steps made by then. Default: 30."),
    }
    return make_command(
        _act,
        [
            *(
                parameter(name, kind, typer.Option(None, *flags, metavar=metavar, help=text))
                for name, (kind, flags, metavar, text) in options.items()
            ),
            *setting_options(names=("api_key",)),
        ],
        help_text="Record the next steps of a running server: each op's time, as a trace for ui.perfetto.dev.",
    )


def _act(given: dict[str, Any]) -> None:
    from headway.cli.remote import base_url
    from headway.cli.resolve import key_to_send, resolve_settings
    from headway.cli.watched import WatchedServer

    flags, config, rest = split_settings(given)
    key = key_to_send(flags, resolve_settings(flags, config))
    server = WatchedServer(base_url(rest.get("url") or DEFAULT_URL), key)
    names = {"model": "model_name", "num_steps": "steps", "timeout_s": "timeout"}
    body = {field: rest[name] for field, name in names.items() if name in rest}
    try:
        note("waiting for steps ...")
        trace = server.check("POST", "/admin/profile", body).json()
    finally:
        server.close()
    write_trace(trace, rest.get("output") or Path("trace.json"))


def write_trace(trace: dict[str, Any], path: Path) -> None:
    """Writes the file and says what is in it. Raises InvalidConfig where it can not be written."""
    try:
        path.write_text(json.dumps(trace))
    except OSError as error:
        raise InvalidConfig(f"--output {path} can not be written: {error}", param="output") from None
    for line in summary(trace):
        say(line)
    if trace["traceEvents"]:
        note(f"{path}: open it in ui.perfetto.dev or chrome://tracing")


def summary(trace: dict[str, Any]) -> list[str]:
    """The steps, and the ops that took longest in all of them together."""
    steps = [event for event in trace["traceEvents"] if event.get("cat") == "step"]
    if not steps:
        return ["no step was made: send requests while it waits"]
    total_s = sum(step["dur"] for step in steps) / 1e6
    tokens = sum(step["args"]["tokens"] for step in steps)
    lines = [f"{len(steps)} steps, {tokens} tokens, {total_s * 1e3 / len(steps):.2f} ms a step"]
    for name, seconds in list(trace["op_seconds"].items())[:_MAX_OPS_SHOWN]:
        lines.append(f"{seconds / total_s:6.1%}  {seconds * 1e3 / len(steps):8.3f} ms  {name}")
    return lines
