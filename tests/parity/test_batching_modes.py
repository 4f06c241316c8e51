"""On the demo and the native executor: the same tokens and log-probabilities, bit for bit, whatever the batching, the
policy, the cache and the chunks; and a pinned prefix changes none of them."""

import time
from dataclasses import dataclass, replace

import pytest

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import BatchingMode, EngineConfig, SchedulingPolicy
from headway.engine.engine import Engine
from headway.engine.loading import load_engine
from headway.scheduler.batching import make_batching
from headway.scheduler.policy import make_policy
from headway.scheduler.scheduler import Scheduler, SchedulerLimits
from headway.text.tokenizer import make_tokenizer
from oracles import demo_model

BLOCK_SIZE, MAX_NUM_SEQS, MAX_STEP_TOKENS = 16, 4, 160
TEXTS = (
    "The ferry leaves",
    "Ten people arrived at the harbour within two minutes, and so",
    "Once there was a captain who counted the boats, and each morning she wrote the number into a small blue book " * 2,
    "def headway(departures):\n    return",
    "42",
    "渡し船は時刻どおりに出る。",
)


@dataclass(frozen=True)
class Mode:
    """One way to run."""

    name: str
    batching: BatchingMode = "continuous"
    policy: SchedulingPolicy = "fcfs"
    enable_kv_cache: bool = True
    enable_chunked_prefill: bool = True
    has_prefix_cache: bool = True
    has_pins: bool = False


MODES = (
    Mode("dynamic", batching="dynamic"),
    Mode("static", batching="static"),
    Mode("no KV cache", enable_kv_cache=False, has_prefix_cache=False),
    Mode("whole prompts", enable_chunked_prefill=False),
    Mode("priority", policy="priority"),
    Mode("sjf", policy="sjf"),
    Mode("fair", policy="fair"),
    Mode("pinned", has_pins=True),
)

Answers = dict[tuple[str, int], list[tuple[int, float]]]


class Bench:
    """The demo, loaded once; each mode gets an empty cache and a scheduler of its own over it."""

    def __init__(self) -> None:
        config = EngineConfig(
            executor="native",
            threads=2,
            block_size=BLOCK_SIZE,
            max_model_len=256,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_STEP_TOKENS,
            kv_cache_memory=2**28,
        )
        self.engine: Engine = load_engine(demo_model(), config, lambda _: None)[0]
        self.prompts = [make_tokenizer(open_checkpoint(demo_model()).text).encode(text) for text in TEXTS]

    def run(self, mode: Mode, num_step_tokens: int) -> Answers:
        engine = self.engine
        cache = KVCache(num_blocks=64, block_size=BLOCK_SIZE, enable_prefix_caching=mode.has_prefix_cache)
        limits = SchedulerLimits(
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=num_step_tokens,
            enable_chunked_prefill=mode.enable_chunked_prefill,
            enable_kv_cache=mode.enable_kv_cache,
        )
        batching = make_batching(mode.batching, capacity=MAX_NUM_SEQS, max_delay_s=0.0, now=time.perf_counter)
        engine._kv_cache = cache
        engine._scheduler = Scheduler(limits, cache, policy=make_policy(mode.policy, 30.0), batching=batching)
        if mode.has_pins:
            assert engine.pin_prefixes([self.prompts[2][:40]]) == 2
        engine.limits = replace(engine.limits, scheduling_policy=mode.policy)
        return self._answers(mode)

    def _answers(self, mode: Mode) -> Answers:
        told: Answers = {}

        def step() -> None:
            for event in self.engine.step().events:
                for token_id, logprob in zip(event.token_ids, event.logprobs or [], strict=True):
                    told.setdefault((event.request_id, event.choice), []).append((token_id, logprob.logprob))

        for number, prompt in enumerate(self.prompts):
            sampling = wire.Sampling(
                n=1 + number % 2,
                temperature=0.0 if number < 3 else 0.9,
                seed=number,
                max_tokens=3 + 2 * number,
                logprobs=0,
                repetition_penalty=1.2 if number == 4 else 1.0,
                ignore_eos=True,
            )
            self.engine.submit(
                wire.Submit(
                    request_id=str(number),
                    prompt_token_ids=prompt,
                    sampling=sampling,
                    priority=-number if mode.policy == "priority" else 0,
                    tenant=str(number % 2),
                )
            )
            step()
        while self.engine.has_work():
            step()
        self.engine.check()
        return told


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def right(bench: Bench) -> Answers:
    """With nothing but the defaults."""
    answers = bench.run(Mode("continuous"), MAX_STEP_TOKENS)
    lengths = {name: len(tokens) for name, tokens in answers.items()}
    assert lengths == {(str(n), choice): 3 + 2 * n for n in range(len(TEXTS)) for choice in range(1 + n % 2)}
    return answers


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_each_mode_gives_the_same_bits(bench: Bench, right: Answers, mode: Mode) -> None:
    assert bench.run(mode, MAX_STEP_TOKENS // 2 if mode.enable_chunked_prefill else MAX_STEP_TOKENS) == right


def test_static_batching_pads_and_says_how_much(bench: Bench) -> None:
    before = bench.engine.stats().values["padding_tokens_total"]
    bench.run(Mode("static", batching="static"), MAX_STEP_TOKENS)
    assert bench.engine.stats().values["padding_tokens_total"] > before
