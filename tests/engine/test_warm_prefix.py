import json
from pathlib import Path
from typing import Any

import pytest

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.loading import load_engine
from headway.engine.warm_prefix import check_share, read_prefixes
from headway.errors import InvalidConfig
from headway.testing.script import CONTROL_TOKENS, Script
from headway.testing.scripted_text import make_text_source
from headway.testing.tiny_model import greedy_by_hand, write_tiny_model

SOURCE = make_text_source(Script())
END = CONTROL_TOKENS.index("<|end|>") + 256
SYSTEM = "You count boats, and say nothing else."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("warm") / "tiny")


def write(folder: Path, text: str) -> Path:
    path = folder / "prefixes.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_a_line_is_text_or_json_with_text_ids_or_messages(tmp_path: Path) -> None:
    lines = [
        "plain, with \u2028 inside",
        "",
        json.dumps({"text": "two\nlines"}),
        json.dumps({"token_ids": [5, 6, 7]}),
        json.dumps({"messages": [{"role": "user", "content": "hi <|end|>"}]}),
    ]
    read = read_prefixes(write(tmp_path, "\r\n".join(lines)), SOURCE, None)
    # Without what asks for an answer; a control token in a message stays text, one in the text of a line is one.
    assert list(read) == [1, 3, 4, 5]
    assert [read[1], read[3], read[4]] == [list(lines[0].encode()), list(b"two\nlines"), [5, 6, 7]]
    assert read[5][0] > 255
    assert read[5][-1] == END
    assert read[5][1:-1] == list(b"hi <|end|>")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"prefixes.jsonl is empty"),
        ("\n \n", r"prefixes.jsonl is empty"),
        ("ok\n{not json", r"line 2 of .*prefixes.jsonl"),
        ('{"txet": "a"}', r"line 1 of .*txet"),
        ("{}", r"line 1 of .*one of text, token_ids and messages"),
        ('{"text": "a", "token_ids": [1]}', r"one of text, token_ids and messages"),
        ('{"text": "a", "tools": []}', r"tools only with messages"),
        ('{"token_ids": [99999]}', r"line 1 of .*99999"),
        ('{"token_ids": []}', r"line 1 of .* has no tokens"),
        ('{"token_ids": ["a"]}', r"line 1 of .*int"),
    ],
)
def test_what_cannot_be_a_prefix_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        read_prefixes(write(tmp_path, text), SOURCE, None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere can not be read: .*No such file"):
        read_prefixes(tmp_path / "nowhere", SOURCE, None)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"bytes can not be read: .*utf-8"):
        read_prefixes(tmp_path / "bytes", SOURCE, None)


def test_more_than_half_of_the_cache_is_refused_with_both_numbers() -> None:
    first, second = list(range(40)), [*range(16), *range(100, 124)]  # 10 blocks of 4 each, the first 4 the same
    check_share([first, second, first[:39]], 4, 32)
    with pytest.raises(InvalidConfig, match=r"fill 16 blocks of 4 tokens, and at most 15 of the KV cache's 31"):
        check_share([first, second], 4, 31)
    with pytest.raises(InvalidConfig, match=r"none fills a block of 64 tokens"):
        check_share([first, second], 64, 31)


@pytest.mark.parametrize(("executor", "dtype"), [("native", "auto"), ("torch", "float32")])
def test_a_loaded_engine_has_its_prefixes(tiny: Path, tmp_path: Path, executor: Any, dtype: Any) -> None:
    messages = [{"role": "system", "content": SYSTEM}]
    path = write(tmp_path, json.dumps({"messages": messages}) + "\n" + "abc" * 11)
    config = EngineConfig(executor=executor, dtype=dtype, threads=1, block_size=16, warm_prefix=str(path))
    engine, info = load_engine(tiny, config, lambda _: None)
    # 39 and 33 tokens: two whole blocks each.
    assert info["num_pinned_blocks"] == 2 + 2 == engine.stats().values["num_pinned_blocks"]
    assert any("warm prefixes: 64 tokens" in line for line in info["plan"])
    prompt = list(("abc" * 11 + "ab").encode())
    for salt, cached in (("", 32), ("salted", 0)):
        sampling = wire.Sampling(max_tokens=6, temperature=0.0)
        engine.submit(wire.Submit(request_id=salt, prompt_token_ids=prompt, sampling=sampling, cache_salt=salt))
        events = []
        while engine.has_work():
            events += engine.step().events
        assert {event.num_cached_tokens for event in events} == {cached}
        assert [token for event in events for token in event.token_ids] == greedy_by_hand(prompt, 6)
    engine.check()


@pytest.mark.parametrize("off", [{"enable_prefix_caching": False}, {"enable_kv_cache": False}])
def test_without_a_prefix_cache_prefixes_are_refused(tiny: Path, tmp_path: Path, off: dict[str, bool]) -> None:
    config = EngineConfig(threads=1, warm_prefix=str(write(tmp_path, "abc" * 20)), **off)
    with pytest.raises(InvalidConfig, match="no prefix cache"):
        load_engine(tiny, config, lambda _: None)


def test_a_prefix_as_long_as_the_context_is_refused_with_both_numbers_and_its_line(tiny: Path, tmp_path: Path) -> None:
    path = write(tmp_path, "short and good, as long as it is over a block\n" + "abc" * 20)
    config = EngineConfig(threads=1, max_model_len=60, kv_cache_memory=2**26, warm_prefix=str(path))
    with pytest.raises(InvalidConfig, match=r"has 60 tokens and the model's context is 60.*in line 2"):
        load_engine(tiny, config, lambda _: None)
