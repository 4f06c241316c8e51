"""`headway top`: a live screen over a running server. Where stdout is no terminal: a line a refresh."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from headway.cli.options import make_command, parameter, setting_options, split_settings
from headway.cli.terminal import is_terminal, say

if TYPE_CHECKING:
    from rich.table import Table

    from headway.cli.scrape import Span
    from headway.cli.watched import Look, WatchedServer

DEFAULT_URL = "http://127.0.0.1:8000"
_LATENCIES = (
    ("first token", "headway_time_to_first_token_seconds"),
    ("between tokens", "headway_inter_token_latency_seconds"),
    ("queue", "headway_request_queue_time_seconds"),
    ("whole request", "headway_e2e_request_latency_seconds"),
)
_ENCODER_LATENCIES = (("whole request", "headway_encoder_request_seconds"),)
_SHARES = (0.5, 0.95, 0.99)


def make() -> TyperCommand:
    """The command."""
    url = parameter("url", str, typer.Option(None, "--url", metavar="URL", help=f"The server. Default: {DEFAULT_URL}."))
    interval = typer.Option(None, "--interval", metavar="SECONDS", min=0.1, help="Between refreshes. Default: 2.")
    once = typer.Option(None, "--once", help="Print one line, of all since the server's start, and end.")
    return make_command(
        _act,
        [
            url,
            parameter("interval", float, interval),
            parameter("once", bool, once),
            *setting_options(names=("api_key",)),
        ],
        help_text="Watch a running server: throughput, queues, KV cache, latencies, its models.",
    )


def _act(given: dict[str, Any]) -> None:
    from headway.cli.remote import base_url
    from headway.cli.resolve import key_to_send, resolve_settings
    from headway.cli.watched import WatchedServer

    flags, config, rest = split_settings(given)
    key = key_to_send(flags, resolve_settings(flags, config))
    server = WatchedServer(base_url(rest.get("url") or DEFAULT_URL), key)
    try:
        watch(server, rest.get("interval") or 2.0, is_once=bool(rest.get("once")))
    finally:
        server.close()


def watch(server: "WatchedServer", interval_s: float, *, is_once: bool) -> None:
    """Looks and shows until it is interrupted; once: one line. Raises as WatchedServer.look()."""
    if is_once:
        _say_lines(*next(_looks(server, interval_s)))
    elif is_terminal(sys.stdout):
        _watch_screen(server, interval_s)
    else:
        for look, span in _looks(server, interval_s):
            _say_lines(look, span)


def _looks(server: "WatchedServer", interval_s: float) -> "Iterator[tuple[Look, Span]]":
    """Each look, and what happened since the one before."""
    from headway.cli.scrape import Span

    before = None
    while True:
        look = server.look()
        yield look, Span(look.scrape, before)
        before = look.scrape
        time.sleep(interval_s)


def _watch_screen(server: "WatchedServer", interval_s: float) -> None:
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        for look, span in _looks(server, interval_s):
            live.update(make_screen(server.url, look, span), refresh=True)


def _say_lines(look: "Look", span: "Span") -> None:
    for model in look.models:
        say(make_line(model, span))


def make_line(model: dict[str, Any], span: "Span") -> str:
    """A model's numbers as `name=value` words: for logs, and for those who cut and grep."""
    name = model["id"]
    words = [f"model={name}", f"state={model['state']}"]
    words += [f"{key}={text}" for key, text in _numbers(model, span)]
    for title, histogram in _latencies(model):
        shown = "/".join(_seconds(span.percentile(histogram, share, name)) for share in _SHARES)
        words.append(f"{title.replace(' ', '_')}={shown}")
    return " ".join(words)


def make_screen(url: str, look: "Look", span: "Span") -> "Table":
    """All models under each other."""
    from rich.table import Table

    screen = Table.grid(padding=(0, 2))
    failures = span.value("headway_worker_restarts_total")
    screen.add_row(f"[b]Headway[/b] at {url}", f"restarts {failures:.0f}", "Ctrl-C ends")
    for model in look.models:
        screen.add_row()
        screen.add_row(f"[b]{model['id']}[/b]", _state(model))
        screen.add_row(_numbers_table(model, span), _latency_table(model, span))
    return screen


def _state(model: dict[str, Any]) -> str:
    if model.get("error"):
        return f"{model['state']}: {model['error'][:100]}"
    phase = f": {model['phases'][-1]['phase']}" if model["state"] == "loading" and model["phases"] else ""
    return str(model["state"]) + phase


def _numbers_table(model: dict[str, Any], span: "Span") -> "Table":
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    for key, text in _numbers(model, span):
        table.add_row(key.replace("_", " "), text)
    return table


def _latency_table(model: dict[str, Any], span: "Span") -> "Table":
    from rich.table import Table

    table = Table("seconds", *(f"p{share * 100:g}" for share in _SHARES), box=None)
    for title, histogram in _latencies(model):
        table.add_row(title, *(_seconds(span.percentile(histogram, share, model["id"])) for share in _SHARES))
    return table


def _is_encoder(model: dict[str, Any]) -> bool:
    return model.get("task") in ("embed", "score")


def _latencies(model: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return _ENCODER_LATENCIES if _is_encoder(model) else _LATENCIES


def _numbers(model: dict[str, Any], span: "Span") -> list[tuple[str, str]]:
    """Titles and texts, in the order in which they are shown."""
    return _encoder_numbers(model["id"], span) if _is_encoder(model) else _language_numbers(model["id"], span)


def _encoder_numbers(model: str, span: "Span") -> list[tuple[str, str]]:
    return [
        ("requests_a_second", _rate(span.rate("headway_encoder_requests_total", model))),
        ("texts_a_second", _rate(span.rate("headway_requests_accepted_total", model))),
        ("computed_tokens_a_second", _rate(span.rate("headway_computed_tokens_total", model))),
        ("waiting", f"{span.value('headway_num_requests_waiting', model):.0f}"),
        ("requests_ended", f"{span.value('headway_encoder_requests_total', model):.0f}"),
    ]


def _language_numbers(model: str, span: "Span") -> list[tuple[str, str]]:
    return [
        ("output_tokens_a_second", _rate(_output_rate(model, span))),
        ("computed_tokens_a_second", _rate(span.rate("headway_computed_tokens_total", model))),
        ("running", f"{span.value('headway_num_requests_running', model):.0f}"),
        ("waiting", f"{span.value('headway_num_requests_waiting', model):.0f}"),
        ("kv_used", f"{span.value('headway_kv_cache_usage_perc', model):.1%}"),
        (
            "prefix_hits",
            _share(*(span.increase(f"headway_prefix_cache_{it}_total", model) for it in ("hits", "queries"))),
        ),
        ("preemptions", f"{span.value('headway_num_preemptions_total', model):.0f}"),
        ("requests_ended", f"{span.value('headway_request_success_total', model):.0f}"),
    ]


def _output_rate(model: str, span: "Span") -> float | None:
    """By the tokens that streams were given: headway_generation_tokens tells of a request when it has ended."""
    rates = [
        span.rate(f"headway_{name}_seconds_count", model) for name in ("time_to_first_token", "inter_token_latency")
    ]
    return None if None in rates else sum(rate for rate in rates if rate is not None)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3g}"
