"""Random mixes of requests on the real executor and sampler: each finished answer is the one that the same request gets
alone on a cold engine, and every invariant holds after every step. That each condition came up is asserted too."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.cache.kv_store import KVStore
from headway.cache.radix_tree import RadixTree
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import EngineConfig
from headway.core.output import TextDelta
from headway.core.sampling import SamplingParams
from headway.core.sequence import SequenceStatus
from headway.engine.engine import Engine
from headway.engine.sampler import Sampler
from headway.executor.base import Executor, Float32
from headway.executor.torch import TorchExecutor
from headway.model.registry import make_program
from headway.testing.tiny_model import END_TOKEN_ID, VOCAB_SIZE, write_tiny_model
from headway.text.tokenizer import Tokenizer, make_tokenizer
from headway.worker.assembler import ChoiceAssembler
from small_shapes import like_llama

MAX_MODEL_LEN = 64
NUM_SLOTS = 512
NUM_MIXES = 8
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
CONDITIONS = (
    "cached", "chunked", "merged", "evicted", "waited for a sibling", "a prompt that just fits",
    "preempted", "preempted while held", "preempted choice of several", "preempted with penalties",
    "logprobs of a preempted choice", "held while running", "held while waiting",
    "aborted while waiting", "aborted while running", "aborted choice",
    "first choice aborted before its prompt was computed", "stop string", "stop token", "end token", "length",
)  # fmt: skip


class RandomWeights:
    """Weights of a Program, drawn once: a model that says letters and its end token."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        draw = np.random.default_rng(5)
        self._arrays = {
            name: (draw.standard_normal(shape) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1)).astype("f4")
            for name, shape in shapes.items()
        }
        said = np.isin(np.arange(VOCAB_SIZE), [*LETTERS, END_TOKEN_ID])
        self._arrays["lm_head.weight"] *= said[:, None]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self._arrays.items()}

    def read(self, name: str) -> Float32:
        return self._arrays[name]


@dataclass
class Model:
    """What is the same for all engines of a model. An executor for each block size, over memory that is never cleared:
    what earlier engines left in it must not show."""

    tokenizer: Tokenizer
    make_executor: Callable[[int], Executor]
    has_ties: bool
    """Two tokens may be equally likely, up to rounding: greedy choices must not depend on the second best."""
    executors: dict[int, Executor] = field(default_factory=dict)

    def engine(self, *, num_blocks: int, **config: Any) -> tuple[Engine, KVCache]:
        settings = EngineConfig(**config)
        size = settings.block_size
        if size not in self.executors:
            self.executors[size] = self.make_executor(size)
        executor = self.executors[size]
        sampler = Sampler(
            max_num_seqs=settings.max_num_seqs, vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN, threads=1
        )
        cache = KVCache(num_blocks=num_blocks, block_size=size, enable_prefix_caching=settings.enable_prefix_caching)
        engine = Engine(
            executor=executor,
            sampler=sampler,
            kv_cache=cache,
            config=settings,
            max_model_len=MAX_MODEL_LEN,
            end_token_ids=frozenset({END_TOKEN_ID}),
        )
        return engine, cache


@pytest.fixture(scope="module", params=["tiny", "two layers with grouped queries"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path_factory.mktemp("soak") / "tiny"))
    shape, weights = checkpoint.shape, checkpoint.weights
    is_tiny = request.param == "tiny"
    if not is_tiny:
        shape = like_llama(vocab_size=VOCAB_SIZE, intermediate_size=96, max_position=128, is_tied=False)
    program = make_program(shape, max_model_len=MAX_MODEL_LEN)
    if not is_tiny:
        weights = RandomWeights(program.weights)

    def make_executor(block_size: int) -> Executor:
        store = KVStore(program.caches, num_blocks=NUM_SLOTS // block_size, block_size=block_size, dtype="float32")
        return TorchExecutor(program, weights, store, dtype="float32", threads=1)

    before = torch.get_num_threads()
    yield Model(make_tokenizer(checkpoint.text), make_executor, has_ties=is_tiny)
    torch.set_num_threads(before)


@dataclass
class Asked:
    """A request, and what its choices were told."""

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    choices: list[ChoiceAssembler]
    deltas: list[list[TextDelta]]
    logprobs: list[list[wire.TokenLogprobs]]
    num_ends: list[int]
    is_aborted: set[int] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        return not all(self.num_ends)


@dataclass
class Run:
    """An engine and all that it was asked: the parent's side of it, without a wire."""

    model: Model
    engine: Engine
    asked: dict[str, Asked] = field(default_factory=dict)
    num_preemptions: int = 0

    def submit(self, request_id: str, prompt: list[int], sampling: SamplingParams) -> None:
        fields = {name: getattr(sampling, name) for name in wire.Sampling.__struct_fields__}
        answer = self.engine.submit(
            wire.Submit(request_id=request_id, prompt_token_ids=prompt, sampling=wire.Sampling(**fields))
        )
        assert isinstance(answer, wire.Accepted), answer
        n = sampling.n
        choices = [ChoiceAssembler(self.model.tokenizer, sampling, choice) for choice in range(n)]
        self.asked[request_id] = Asked(
            request_id, prompt, sampling, choices, [[] for _ in range(n)], [[] for _ in range(n)], [0] * n
        )

    def step(self) -> None:
        # By way of bytes, as it comes over the socket.
        step = msgspec.msgpack.decode(msgspec.msgpack.encode(self.engine.step()), type=wire.Step)
        self.engine.check()
        self.num_preemptions += step.num_preemptions
        for event in step.events:
            asked = self.asked[event.request_id]
            assert not asked.num_ends[event.choice], "an event after the end"
            asked.num_ends[event.choice] += event.finish_reason is not None
            choice = asked.choices[event.choice]
            if not choice.is_ended:
                asked.logprobs[event.choice] += event.logprobs or []
            delta = choice.push(event)
            if delta is None:
                continue
            asked.deltas[event.choice].append(delta)
            if delta.finish_reason is not None and event.finish_reason is None:
                self.engine.abort(wire.Abort(request_id=event.request_id, choice=event.choice, finish_reason="stop"))
                self.engine.check()

    def finish(self, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.engine.has_work(), "somebody waits for ever"
        stats = self.engine.stats().values
        assert [stats[name] for name in ("num_requests", "num_running", "num_waiting", "num_used_blocks")] == [0] * 4
        assert all(asked.num_ends == [1] * asked.sampling.n for asked in self.asked.values())


def draw_prompt(draw: random.Random, max_len: int) -> list[int]:
    """From a few stems, so that prefixes meet, part and repeat."""
    stem = (LETTERS * 3)[draw.choice((0, 0, 13)) :]
    prompt = list(stem[: draw.randint(0, max_len - 1)])
    return (prompt + [draw.choice(LETTERS[:4]) for _ in range(draw.choice((1, 1, 2, 5)))])[-max_len:]


def draw_sampling(draw: random.Random, *, has_ties: bool, max_tokens: int) -> SamplingParams:
    is_greedy = draw.random() < 0.5
    fields: dict[str, Any] = {"temperature": 0.0 if is_greedy else draw.choice((0.7, 1.5))}
    if draw.random() < 0.5 and not (has_ties and is_greedy):
        fields |= {
            "presence_penalty": draw.choice((0.0, 1.0)),
            "frequency_penalty": draw.choice((0.0, -0.5)),
            "repetition_penalty": draw.choice((0.8, 1.3)),
            "min_tokens": draw.randint(0, max_tokens),
            "logit_bias": {draw.choice(LETTERS): 2.0, END_TOKEN_ID: 3.0},
        }
    if draw.random() < 0.4 and not has_ties:
        fields |= {"top_k": draw.choice((0, 5)), "top_p": 0.9, "min_p": draw.choice((0.0, 0.05))}
    if draw.random() < 0.3:
        fields["stop"] = (draw.choice(("cd", "f", "xyz")), draw.choice(("gh", "m")))
    return SamplingParams(
        n=draw.choice((1, 1, 2, 3)),
        seed=draw.getrandbits(40),
        max_tokens=max_tokens,
        ignore_eos=draw.random() < 0.3,
        stop_token_ids=[draw.choice(LETTERS)] if draw.random() < 0.2 else [],
        logprobs=draw.choice((None, None, 0, 3)),
        **fields,
    )


class Mix:
    """One random run, and what came up in it."""

    def __init__(self, model: Model, seed: int, seen: Counter[str]) -> None:
        self.draw = draw = random.Random(seed)
        self.seen = seen
        block_size = draw.choice((1, 4, 8))
        self.pool = -(-draw.randint(24, 56) // block_size) * block_size
        max_num_seqs = draw.randint(1, 5)
        self.config = {
            "block_size": block_size,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": draw.randint(max_num_seqs, 20),
            "enable_prefix_caching": draw.random() < 0.8,
            "enable_chunked_prefill": draw.random() < 0.7,
        }
        engine, self.cache = model.engine(num_blocks=self.pool // block_size, seed=seed, **self.config)
        self.model = model
        self.run = Run(model, engine)
        self.preempted: set[tuple[str, int]] = set()

    def play(self) -> None:
        for number in range(self.draw.randint(8, 14)):
            self.submit(str(number))
            for _ in range(self.draw.choice((0, 1, 1, 3, 6))):
                self.step()
                self.interfere()
        for request_id in self.run.asked:
            self.run.engine.hold(wire.Hold(request_id=request_id, is_held=False))
        while self.run.engine.has_work():
            self.step()
        self.run.finish()

    def submit(self, request_id: str) -> None:
        prompt = draw_prompt(self.draw, self.pool - 1)
        room = min(self.pool, MAX_MODEL_LEN) - len(prompt)
        max_tokens = self.draw.randint(1, min(room, 14))
        sampling = draw_sampling(self.draw, has_ties=self.model.has_ties, max_tokens=max_tokens)
        self.seen["a prompt that just fits"] += room == 1
        self.run.submit(request_id, prompt, sampling)

    def step(self) -> None:
        scheduler = self.run.engine._scheduler
        before = {s: s.is_held for s in scheduler.running}
        self.seen["waited for a sibling"] += any(not s.is_held and not s.can_start() for s in scheduler.waiting)
        self.run.step()
        for sequence, was_held in before.items():
            if sequence.status is SequenceStatus.WAITING:
                sampling = sequence.sampling
                self.preempted.add((sequence.request_id, sequence.choice))
                self.seen["preempted"] += 1
                self.seen["preempted while held"] += was_held
                self.seen["preempted choice of several"] += sampling.n > 1
                self.seen["preempted with penalties"] += sampling.repetition_penalty != 1.0
        self.seen["chunked"] += any(0 < s.num_computed_tokens < s.num_prompt_tokens for s in scheduler.running)

    def interfere(self) -> None:
        act = self.draw.choice(("nothing", "nothing", "hold", "go on", "go on", "abort", "abort choice"))
        names = [name for name, asked in self.run.asked.items() if asked.is_open]
        if act == "nothing" or not names:
            return
        asked = self.run.asked[self.draw.choice(names)]
        sequences = self.run.engine._requests.get(asked.request_id, [])
        if act in ("hold", "go on"):
            for sequence in sequences:
                self.seen[f"held while {sequence.status.value}"] += act == "hold"
            self.run.engine.hold(wire.Hold(request_id=asked.request_id, is_held=act == "hold"))
        elif self.draw.random() < 0.5:
            self.abort(asked, None if act == "abort" else self.draw.randrange(asked.sampling.n))
        self.run.engine.check()

    def abort(self, asked: Asked, choice: int | None) -> None:
        for sequence in self.run.engine._requests.get(asked.request_id, []):
            if choice is None or sequence.choice == choice:
                asked.is_aborted.add(sequence.choice)
                self.seen[f"aborted while {sequence.status.value}"] += 1
                is_first = sequence.choice == 0 and sequence.fork is not None and choice is not None
                self.seen["first choice aborted before its prompt was computed"] += is_first
        self.seen["aborted choice"] += choice is not None
        self.run.engine.abort(wire.Abort(request_id=asked.request_id, choice=choice, reason="asked"))

    def compare(self) -> None:
        for asked in self.run.asked.values():
            alone = answer_alone(self.model, asked)
            for choice in range(asked.sampling.n):
                self.compare_choice(asked, alone, choice)

    def compare_choice(self, asked: Asked, alone: Asked, choice: int) -> None:
        mine, right = asked.deltas[choice], alone.deltas[choice]
        tokens, right_tokens = ([t for delta in deltas for t in delta.token_ids] for deltas in (mine, right))
        text, right_text = ("".join(delta.text for delta in deltas) for deltas in (mine, right))
        where = f"request {asked.request_id} choice {choice} of {asked.sampling} after {bytes(asked.prompt)!r}"
        end, right_end = mine[-1], right[-1]
        if choice in asked.is_aborted and end.finish_reason == "abort":
            assert tokens == right_tokens[: len(tokens)], where
            # Cut off inside a character, or behind the beginning of a stop string that the whole text goes on with.
            assert right_text.startswith(text.rstrip("\ufffd")) or asked.sampling.stop, where
        else:
            assert (tokens, text) == (right_tokens, right_text), where
            assert (end.finish_reason, end.stop_reason) == (right_end.finish_reason, right_end.stop_reason), where
            is_string = isinstance(end.stop_reason, str)
            kind = "stop string" if is_string else "stop token" if end.stop_reason is not None else "end token"
            self.seen["length" if end.finish_reason == "length" else kind] += 1
        self.compare_logprobs(asked, alone, choice, where)

    def compare_logprobs(self, asked: Asked, alone: Asked, choice: int, where: str) -> None:
        mine = asked.logprobs[choice]
        if asked.sampling.logprobs is None:
            assert mine == [], where
            return
        self.seen["logprobs of a preempted choice"] += (asked.request_id, choice) in self.preempted and bool(mine)
        for one, other in zip(mine, alone.logprobs[choice], strict=False):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4), where
            assert one.top_logprobs == pytest.approx(other.top_logprobs, abs=1e-4), where
            assert self.model.has_ties or one.top_ids == other.top_ids, where


def answer_alone(model: Model, asked: Asked) -> Asked:
    """The same request on a cold engine, whole prompts, no cache, nobody else."""
    engine, _ = model.engine(
        num_blocks=NUM_SLOTS // 8,
        block_size=8,
        max_num_seqs=asked.sampling.n,
        max_num_batched_tokens=NUM_SLOTS,
        enable_prefix_caching=False,
    )
    run = Run(model, engine)
    run.submit("alone", asked.prompt, asked.sampling)
    run.finish()
    assert run.num_preemptions == 0
    return run.asked["alone"]


def test_each_answer_of_a_random_mix_is_that_of_the_request_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    insert, evict = RadixTree.insert, RadixTree.evict

    def watched_insert(tree: RadixTree, node: Any, token_ids: list[int], block_ids: list[int], salt: str) -> Any:
        node, merged = insert(tree, node, token_ids, block_ids, salt)
        seen["merged"] += merged != block_ids
        return node, merged

    def watched_evict(tree: RadixTree, num: int) -> list[int]:
        seen["evicted"] += 1
        return evict(tree, num)

    monkeypatch.setattr(RadixTree, "insert", watched_insert)
    monkeypatch.setattr(RadixTree, "evict", watched_evict)
    for seed in range(NUM_MIXES):
        mix = Mix(model, seed, seen)
        mix.play()
        seen["cached"] += mix.cache.num_prefix_hits > 0
        mix.compare()
    assert {condition for condition in CONDITIONS if not seen[condition]} == set()
