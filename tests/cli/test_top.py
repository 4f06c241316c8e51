"""`headway top`: numbers between two scrapes worked by hand, and a real server's door."""

import asyncio
import io
import math
from typing import Any

import httpx2
import pytest
from rich.console import Console
from tests.server.conftest import listening

from headway.cli.main import run
from headway.cli.scrape import Span, parse_scrape, quantile
from headway.cli.top import make_line, make_screen, watch
from headway.cli.watched import Look, WatchedServer
from headway.config import ServerConfig
from headway.core.request import GenerateRequest, TextPrompt
from headway.core.sampling import SamplingParams
from headway.errors import InternalError, InvalidConfig, Unauthorized
from headway.server.app import make_app
from headway.testing.script import Script, say
from headway.testing.scripted_service import ScriptedService

TTFT = "headway_time_to_first_token_seconds"
ITL = "headway_inter_token_latency_seconds"


def exposition(running: int, buckets: tuple[int, int, int], num_tokens: int) -> str:
    """One model m; first tokens within 1 s, within 2 s, and all."""
    lines = [
        "# TYPE headway_num_requests_running gauge",
        f'headway_num_requests_running{{model_name="m"}} {running}',
        f"# TYPE {TTFT} histogram",
        *(
            f'{TTFT}_bucket{{le="{le}",model_name="m"}} {n}'
            for le, n in zip(("1.0", "2.0", "+Inf"), buckets, strict=True)
        ),
        f'{TTFT}_count{{model_name="m"}} {buckets[2]}',
        f'{TTFT}_sum{{model_name="m"}} 1.5',
        f"# TYPE {ITL} histogram",
        f'{ITL}_bucket{{le="+Inf",model_name="m"}} {num_tokens}',
        f'{ITL}_count{{model_name="m"}} {num_tokens}',
        f'{ITL}_sum{{model_name="m"}} 0.5',
        "# TYPE headway_request_success counter",
        'headway_request_success_total{model_name="m",finished_reason="stop"} 3',
        'headway_request_success_total{model_name="m",finished_reason="abort"} 2',
    ]
    return "\n".join(lines) + "\n"


BEFORE = parse_scrape(exposition(1, (10, 10, 10), 100), at_s=10.0)
NOW = parse_scrape(exposition(2, (11, 14, 14), 136), at_s=12.0)
CARD: dict[str, Any] = {"id": "m", "state": "ready", "phases": [], "error": None}


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({1.0: 5, 2.0: 10, math.inf: 10}, 0.5, 1.0),
        ({1.0: 5, 2.0: 10, math.inf: 10}, 0.75, 1.5),
        ({1.0: 5, 2.0: 10, math.inf: 10}, 0.1, 0.2),
        ({1.0: 0, 2.0: 10, math.inf: 10}, 0.5, 1.5),
        ({1.0: 5, 2.0: 5, math.inf: 10}, 0.99, 2.0),  # nothing is known beyond the last bound
        ({1.0: 0, math.inf: 0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_a_quantile_is_prometheus_own(buckets: dict[float, float], share: float, expected: float | None) -> None:
    assert quantile(buckets, share) == pytest.approx(expected) if expected is not None else True
    assert (quantile(buckets, share) is None) == (expected is None)


def test_between_two_scrapes_only_what_happened_in_between_counts() -> None:
    span = Span(NOW, BEFORE)
    assert span.value("headway_num_requests_running", "m") == 2
    assert span.value("headway_request_success_total", "m") == 5
    # 1 of the 4 new first tokens came within 1 s, all within 2.
    assert span.percentile(TTFT, 0.5, "m") == pytest.approx(1 + 1 / 3)
    assert span.rate(f"{ITL}_count", "m") == (136 - 100) / 2
    assert Span(NOW).rate(f"{ITL}_count", "m") is None
    assert Span(NOW).percentile(TTFT, 0.5, "m") == pytest.approx(7 / 11)


def test_a_server_that_began_anew_is_no_negative_rate() -> None:
    span = Span(parse_scrape(exposition(0, (1, 1, 1), 8), 14.0), NOW)
    assert span.rate(f"{ITL}_count", "m") == 4
    assert span.percentile(TTFT, 0.5, "m") == 0.5


def test_a_line_and_a_screen_say_the_same() -> None:
    span, look = Span(NOW, BEFORE), Look(NOW, (CARD,))
    line = make_line(CARD, span)
    assert "model=m state=ready output_tokens_a_second=20.0 " in line  # 36 tokens and 4 first ones in 2 s
    assert "running=2" in line
    assert "first_token=1.33/1.93/1.99" in line
    assert "prefix_hits=-" in line
    console = Console(file=io.StringIO(), width=120)
    console.print(make_screen("http://x", look, span))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("Headway at http://x", "ready", "20.0", "1.33", "1.93", "1.99", "p99"):
        assert words in shown


def test_what_a_model_fails_of_and_where_it_is_are_shown() -> None:
    console = Console(file=io.StringIO(), width=120)
    failed = CARD | {"state": "failed", "error": "no such tensor"}
    loading = CARD | {"id": "other", "state": "loading", "phases": [{"phase": "read", "seconds": 1.0}]}
    console.print(make_screen("http://x", Look(NOW, (failed, loading)), Span(NOW)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "failed: no such tensor" in shown
    assert "loading: read" in shown


async def test_a_running_server_is_watched(capsys: pytest.CaptureFixture[str]) -> None:
    service = ScriptedService(Script(reply=say("abc")))
    async with listening(make_app(service, ServerConfig(port=0, api_keys=("key",)))) as server:
        await service.until_ready()
        async with await service.generate(
            GenerateRequest("r", "scripted", TextPrompt("hi"), SamplingParams())
        ) as stream:
            assert [delta.text async for delta in stream]
        await service.until_idle()
        watched = WatchedServer(server.url, "key")
        await asyncio.to_thread(watch, watched, 1.0, is_once=True)
        watched.close()
        shown = capsys.readouterr().out
        assert shown.startswith("model=scripted state=ready output_tokens_a_second=- ")
        assert "running=0" in shown
        nobody = WatchedServer(server.url, None)
        with pytest.raises(Unauthorized, match="--api-key"):
            await asyncio.to_thread(nobody.look)
        nobody.close()


def test_what_is_no_headway_is_told() -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(404, text="nothing here"))
    with pytest.raises(InternalError, match="/metrics answered 404: nothing here"):
        WatchedServer("http://x", None, transport).look()

    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(InvalidConfig, match="nobody answers at http://x"):
        WatchedServer("http://x", None, httpx2.MockTransport(refuse)).look()


def test_the_command_tells_that_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--url", "127.0.0.1:9", "--once"]) == 2
    assert "nobody answers at http://127.0.0.1:9" in capsys.readouterr().err


def test_an_encoder_has_other_numbers() -> None:
    def scrape(num: int, at_s: float) -> Any:
        lines = [
            "# TYPE headway_encoder_requests counter",
            f'headway_encoder_requests_total{{model_name="e",task="score",outcome="success"}} {num}',
            f'headway_encoder_requests_total{{model_name="e",task="rerank",outcome="error"}} {num}',
            "# TYPE headway_requests_accepted counter",
            f'headway_requests_accepted_total{{model_name="e"}} {num * 8}',
            "# TYPE headway_encoder_request_seconds histogram",
            f'headway_encoder_request_seconds_bucket{{model_name="e",outcome="success",le="1.0"}} {num}',
            f'headway_encoder_request_seconds_bucket{{model_name="e",outcome="success",le="+Inf"}} {num}',
            f'headway_encoder_request_seconds_count{{model_name="e",outcome="success"}} {num}',
            'headway_encoder_request_seconds_sum{model_name="e",outcome="success"} 1.0',
        ]
        return parse_scrape("\n".join(lines) + "\n", at_s=at_s)

    line = make_line(CARD | {"id": "e", "task": "score"}, Span(scrape(30, 4.0), scrape(10, 2.0)))
    assert line == (
        "model=e state=ready requests_a_second=20.0 texts_a_second=80.0 computed_tokens_a_second=0.0 waiting=0 "
        "requests_ended=60 whole_request=0.5/0.95/0.99"
    )
