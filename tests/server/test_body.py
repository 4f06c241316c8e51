"""One parser and one set of rules for every body."""

from typing import Any

import orjson
import pytest

from headway.errors import InvalidRequest
from headway.server.body import parse_body, parse_json
from headway.server.openai.schema import ChatBody

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b'{"a":1} x', "no valid JSON"),
        (b'{"a":NaN}', "no valid JSON"),
        (b'{"a":Infinity}', "no valid JSON"),
        (b'{"a":-Infinity}', "no valid JSON"),
        (b'{"a":"\\ud800"}', "no valid JSON"),
        (b'{"a":"\\udc00x"}', "no valid JSON"),
        (b'{"a\\ud800":1}', "no valid JSON"),
        (b'{"a":"\xff"}', "no valid JSON"),
        (b"\xef\xbb\xbf{}", "no valid JSON"),
        (DEEP, "no valid JSON"),
        (b'{"a":' * 2000, "no valid JSON"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "no valid JSON"),
        (b'{"a":1e400}', "a is over what a double can hold"),
        (b'{"logit_bias":{"1":-1e999}}', "logit_bias is over what a double can hold"),
        (b"1e400", "no valid JSON"),
        (b'{"a":1e400,"b":' + b"[" * 100_000, "no valid JSON"),
    ],
)
def test_what_is_no_json_is_told_as_such(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_json(data)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("data", [b"[]", b"1", b"null", b'"text"', b"true"])
def test_a_body_must_be_an_object(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="it must be a JSON object"):
        parse_body(data, ChatBody)


def test_the_last_of_two_equal_keys_counts() -> None:
    data = b'{"model":"a","messages":[{"role":"user","content":"x"}],"model":"b"}'
    assert parse_body(data, ChatBody).model == "b"


def test_pairs_of_surrogates_and_all_of_unicode_pass() -> None:
    data = '{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00 \U0001f600 \u0000"}]}'
    assert parse_body(data.replace("\u0000", "\\u0000").encode(), ChatBody).messages[0].content == "😀 😀 \x00"


def test_null_is_the_same_as_absent() -> None:
    fields: dict[str, Any] = {name: None for name in ChatBody.model_fields if name not in ("model", "messages")}
    fields |= dict.fromkeys((*ChatBody.ignored, *ChatBody.refused))
    body = parse_body(orjson.dumps(fields | {"model": "m", "messages": []}), ChatBody)
    assert body == ChatBody(model="m", messages=[])


def test_an_unknown_field_is_named_but_not_echoed_at_length() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(b'{"model":"m","messages":[],"' + b"x" * 5000 + b'":1}', ChatBody)
    assert len(caught.value.message) < 200
    assert len(caught.value.param or "") < 80
