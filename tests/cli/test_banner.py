import json
import shlex

import pytest

from headway.cli.banner import curl_line, plan_lines


@pytest.mark.parametrize("model", ["demo", "it's", 'quo"te', "$HOME `x`", "org/模型"])
@pytest.mark.parametrize("has_chat", [True, False])
def test_the_curl_line_is_one_line_that_a_shell_takes_apart_as_meant(model: str, has_chat: bool) -> None:
    line = curl_line("http://127.0.0.1:8000", model, has_key=False, has_chat=has_chat)
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/" + ("chat/completions" if has_chat else "completions")]
    assert words[2:4] == ["-H", "Content-Type: application/json"]
    body = json.loads(words[5])
    assert (body["model"], body["max_tokens"]) == (model, 64)
    assert "\n" not in line


@pytest.mark.parametrize(("task", "route", "field"), [("embed", "embeddings", "input"), ("score", "rerank", "query")])
def test_the_curl_line_of_an_encoder_asks_for_what_it_does(task: str, route: str, field: str) -> None:
    words = shlex.split(curl_line("http://h:1", "minilm", has_key=False, task=task))
    body = json.loads(words[5])
    assert words[1] == f"http://h:1/v1/{route}"
    assert body["model"] == "minilm"
    assert field in body
    assert "max_tokens" not in body


def test_a_key_is_written_as_a_variable_that_the_shell_fills_in() -> None:
    line = curl_line("http://h:1", "demo", has_key=True)
    assert '-H "Authorization: Bearer $HEADWAY_API_KEY"' in line


def test_an_ipv6_address_is_no_pattern_to_a_shell() -> None:
    line = curl_line("http://[::1]:8000", "demo", has_key=False)
    assert line.startswith("curl 'http://[::1]:8000/v1/chat/completions' ")


def test_the_plan_is_lines_or_a_text_or_nothing() -> None:
    assert plan_lines({"plan": ["a", "b"]}) == plan_lines({"plan": "a\nb"}) == ["a", "b"]
    assert plan_lines({}) == []
