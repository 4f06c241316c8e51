"""Timelines written out by hand, on both executors: who gets a token in which step, and which token it is.

The model is worked by hand (headway.testing.tiny_model): each token of a context shows in the next one's logits.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import headway_wire as wire
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.testing.tiny_model import HIDDEN_SIZE, logits_by_hand, write_tiny_model

BLOCK_SIZE = 16
VALUE_BYTES = {"torch": 4, "native": 2}
Told = list[set[tuple[str, int, str | None]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(params=["torch", "native"])
def make_engine(request: pytest.FixtureRequest, model: Path) -> Iterator[Callable[..., Engine]]:
    def make(*, num_blocks: int = 64, **changes: object) -> Engine:
        block_bytes = BLOCK_SIZE * 2 * HIDDEN_SIZE * VALUE_BYTES[request.param]
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "max_model_len": 256, **changes}
        config = EngineConfig(
            executor=request.param,
            block_size=BLOCK_SIZE,
            kv_cache_memory=num_blocks * block_bytes,
            threads=1,
            seed=1,
            **settings,  # type: ignore[arg-type]
        )
        engine, info = load_engine(model, config, lambda *_: None)
        assert (info["executor"], info["num_blocks"]) == (request.param, num_blocks)
        return engine

    return make


def by_hand(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The greedy continuation that no end token ends."""
    context = list(prompt)
    for _ in range(num_tokens):
        logits = logits_by_hand(context)
        context.append(logits.index(max(logits)))
    return context[len(prompt) :]


class Log:
    """An engine and what it said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.events: list[wire.TokenEvent] = []

    def submit(self, name: str, prompt: bytes, num_tokens: int, n: int = 1) -> None:
        sampling = wire.Sampling(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, n=n)
        answer = self.engine.submit(wire.Submit(request_id=name, prompt_token_ids=list(prompt), sampling=sampling))
        assert isinstance(answer, wire.Accepted)

    def step(self) -> list[wire.TokenEvent]:
        events = list(self.engine.step().events)
        self.engine.check()
        self.events += events
        return events

    def told(self) -> set[tuple[str, int, str | None]]:
        return {(event.request_id, len(event.token_ids), event.finish_reason) for event in self.step()}

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        return [
            token
            for event in self.events
            if (event.request_id, event.choice) == (name, choice)
            for token in event.token_ids
        ]

    def stat(self, name: str) -> float:
        return self.engine.stats().values[name]

    def check_idle(self) -> None:
        assert not self.engine.has_work()
        assert [self.stat(name) for name in ("num_requests", "num_running", "num_waiting", "num_used_blocks")] == [
            0
        ] * 4


def test_sequences_join_and_leave_at_each_step(make_engine: Callable[..., Engine]) -> None:
    log = Log(make_engine(max_num_seqs=2))
    log.submit("A", b"abc", 3)
    told: Told = [log.told()]
    log.submit("B", b"de", 4)
    told.append(log.told())
    log.submit("C", b"fghi", 3)
    told.append(log.told())
    log.submit("D", b"i", 2)
    told += [log.told() for _ in range(4)]
    assert told == [
        {("A", 1, None)},
        {("A", 1, None), ("B", 1, None)},
        {("A", 1, "length"), ("B", 1, None)},
        {("B", 1, None), ("C", 1, None)},
        {("B", 1, "length"), ("C", 1, None)},
        {("C", 1, "length"), ("D", 1, None)},
        {("D", 1, "length")},
    ]
    assert {name: bytes(log.tokens(name)) for name in "ABCD"} == {"A": b"def", "B": b"fghi", "C": b"jkl", "D": b"jk"}
    log.check_idle()


def test_two_requests_of_two_and_three_choices_share_four_rows(make_engine: Callable[..., Engine]) -> None:
    log = Log(make_engine(max_num_seqs=4))
    log.submit("AB", b"ab", 3, n=2)
    log.submit("CDE", b"cd", 3, n=3)
    told = [[(event.request_id, event.choice) for event in log.step()] for _ in range(6)]
    first = [("AB", 0), ("AB", 1), ("CDE", 0), ("CDE", 1)]
    assert told == [first] * 3 + [[("CDE", 2)]] * 3
    assert [bytes(log.tokens("AB", choice)) for choice in range(2)] == [b"cde"] * 2
    assert [bytes(log.tokens("CDE", choice)) for choice in range(3)] == [b"efg"] * 3
    log.check_idle()


def test_the_later_of_two_makes_room_and_goes_on_from_where_it_was(make_engine: Callable[..., Engine]) -> None:
    """Eight blocks of 16. Of each 44 + 20 tokens are computed after step 21; the 65th of A needs a fifth block, B's."""
    prompts = {name: bytes(97 + (place * step) % 26 for place in range(44)) for name, step in (("A", 3), ("B", 7))}
    log = Log(make_engine(num_blocks=8, max_model_len=128))
    for name, prompt in prompts.items():
        log.submit(name, prompt, 24)
    told = [log.told() for _ in range(27)]
    both = {("A", 1, None), ("B", 1, None)}
    ends = {name: [{(name, 1, None)}, {(name, 1, None)}, {(name, 1, "length")}] for name in "AB"}
    assert told == [both] * 21 + ends["A"] + ends["B"]
    assert log.stat("preemptions_total") == 1
    for name, prompt in prompts.items():
        assert log.tokens(name) == by_hand(prompt, 24)
    log.check_idle()


def test_a_prompt_in_chunks_says_its_first_token_with_the_last(make_engine: Callable[..., Engine]) -> None:
    """160 tokens at 64 a step: nothing, nothing, the first. Again: nine of ten blocks are there, 16 are computed."""
    prompt = bytes(97 + place * 5 % 26 for place in range(160))
    log = Log(make_engine(max_num_batched_tokens=64))
    log.submit("cold", prompt, 2)
    assert [log.told() for _ in range(4)] == [set(), set(), {("cold", 1, None)}, {("cold", 1, "length")}]
    log.submit("warm", prompt, 2)
    assert [log.told() for _ in range(2)] == [{("warm", 1, None)}, {("warm", 1, "length")}]
    assert {event.num_cached_tokens for event in log.events if event.request_id == "warm"} == {144}
    assert log.tokens("cold") == log.tokens("warm") == by_hand(prompt, 2)
    assert log.stat("computed_tokens_total") == 160 + 1 + 16 + 1
    log.check_idle()


def test_answers_do_not_depend_on_what_else_runs(make_engine: Callable[..., Engine]) -> None:
    """Twelve in a cache that holds three: all are preempted by turns, and each says what it says by hand."""
    log = Log(make_engine(num_blocks=16, max_num_batched_tokens=32))
    prompts = [bytes(97 + (place * 3 + number) % 26 for place in range(30 + number)) for number in range(12)]
    for number, prompt in enumerate(prompts):
        log.submit(str(number), prompt, 40)
        log.step()
    while log.engine.has_work():
        log.step()
    assert log.stat("preemptions_total") > 0
    for number, prompt in enumerate(prompts):
        assert log.tokens(str(number)) == by_hand(prompt, 40)
    log.check_idle()
