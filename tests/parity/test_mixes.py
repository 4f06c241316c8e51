"""Exact whatever the batch: 200 random mixes of requests on the native executor give each request the token ids, the
log-probabilities and the text that it gets alone on a cold engine, bit for bit. Each condition has to come up.

Executors are shared between the engines of a model, over memory that is never cleared: what earlier requests left in it
must not show. A sample is compared with a process' first answers, from files to tokens.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headway_wire as wire
from demo_layers import write_demo_layers
from headway.cache.kv_cache import KVCache
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import EngineConfig
from headway.core.output import TextDelta
from headway.core.sampling import SamplingParams
from headway.core.step import StepPlan
from headway.engine.admission import ModelLimits
from headway.engine.engine import Engine
from headway.engine.grammars import Grammars
from headway.engine.loading import load_engine
from headway.scheduler.scheduler import Scheduler, SchedulerLimits
from headway.text.grammar import Grammar, json_part
from headway.text.tokenizer import Tokenizer, make_tokenizer
from headway.worker.assembler import ChoiceAssembler
from oracles import demo_model

pytestmark = pytest.mark.timeout(900)  # two minutes of both cores, on a machine that may have more to do
EXECUTOR = "native"
NUM_MIXES = 200
NUM_REQUESTS = 120
NUM_CONSTRAINED = 40
MAX_MODEL_LEN = 448
MAX_STEP_TOKENS = 512
"""What the executors are made for: more than any of the schedulers plans."""
MAX_NUM_SEQS = 8
ENGINES = ((1, 16), (2, 16), (2, 32))
"""(threads, block size)."""
TEXT = (
    "The harbour lay still. Naïve résumés, 42 km of coast — and a café where nobody hurried; the ferry left on the "
    "clock, full or not.\n\ndef headway(departures):\n    return [b - a for a, b in zip(departures, departures[1:])]\n"
    "渡し船は時刻どおりに出る。 🚢🌊 Once there was a captain who counted the boats, and each morning she wrote the "
    "number into a small blue book that nobody else was allowed to read, "
) * 4
CONDITIONS = (
    "threads 1", "threads 2", "blocks of 32", "no prefix cache", "prefix hit", "chunked", "not chunked",
    "a chunk of a long prompt", "prompts beside streams", "greedy beside sampled", "eight at once",
    "preempted", "preempted choice of several", "preempted with penalties", "preempted with logprobs",
    "preempted behind a prefix hit", "held", "n over 1", "top_p", "top_k", "min_p", "penalties", "logit bias",
    "logprobs", "min_tokens", "stop string", "stop token", "end token", "length", "text beyond ASCII",
    "constrained beside free", "constrained, sampled", "a run of forced tokens", "a run of forced tokens cut",
    "forced with logprobs", "preempted constrained", "constrained choice of several", "a trigger's grammar held",
)  # fmt: skip
CORE_CONDITIONS = frozenset(
    (
        *("prefix hit", "chunked", "preempted", "greedy beside sampled", "threads 1", "threads 2"),
        *("constrained beside free", "a run of forced tokens"),
    )
)
RECORD = {
    "type": "object",
    "properties": {
        "captain_name": {"type": "string", "maxLength": 6},
        "number_of_boats": {"type": "integer", "minimum": 0, "maximum": 9},
        "harbour_is_still": {"type": "boolean"},
    },
    "required": ["captain_name", "number_of_boats", "harbour_is_still"],
    "additionalProperties": False,
}
CONSTRAINTS = (
    wire.Constraint(grammar=Grammar("start: @record", {"record": json_part(RECORD)}).text()),
    wire.Constraint(grammar="start: /(the|a) (ship|ferry)( left| came){1,9}\\./"),
    wire.Constraint(grammar='start: /[e ]/ "[[" /[a-z]{3,5}/ "]] and then "', trigger="[e ]"),
)
"""Much is forced; nearly everything is free to choose; now and then the one, now and then the other."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A request that may come up in any number of mixes."""

    prompt: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True)
class Choice:
    """All that one choice was told."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[Any, ...]
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass
class Running:
    """A request on its way."""

    asked: Asked
    assemblers: list[ChoiceAssembler]
    deltas: list[list[TextDelta]]


class WatchedScheduler(Scheduler):
    """A scheduler that notes what its plans hold."""

    def __init__(self, limits: SchedulerLimits, cache: KVCache, seen: Counter[str]) -> None:
        super().__init__(limits, cache)
        self.seen = seen

    def schedule(self) -> StepPlan:
        plan, seen = super().schedule(), self.seen
        pairs = plan.scheduled
        is_short = [pair.num_tokens < pair.sequence.num_missing_tokens for pair in pairs]
        seen["chunked"] += any(is_short)
        seen["a chunk of a long prompt"] += any(
            short and pair.sequence.num_prompt_tokens > 150 for short, pair in zip(is_short, pairs, strict=True)
        )
        seen["not chunked"] += not self.limits.enable_chunked_prefill and max(plan.num_tokens, default=0) > 1
        seen["prompts beside streams"] += len({pair.num_tokens > 1 for pair in pairs}) == 2
        seen["greedy beside sampled"] += len({pair.sequence.sampling.temperature == 0 for pair in pairs}) == 2
        seen["eight at once"] += len(pairs) == MAX_NUM_SEQS
        seen["constrained beside free"] += len({pair.sequence.sampling.constraint is None for pair in pairs}) == 2
        for short, (sequence, num_tokens) in zip(is_short, pairs, strict=True):
            is_run = num_tokens > 1 and sequence.num_computed_tokens >= sequence.num_prompt_tokens
            if is_run and sequence.sampling.constraint is not None and not sequence.num_preemptions:
                seen["a run of forced tokens"] += 1
                seen["a run of forced tokens cut"] += short
        for sequence in plan.preempted:
            sampling = sequence.sampling
            seen["preempted"] += 1
            seen["preempted choice of several"] += sampling.n > 1
            seen["preempted constrained"] += sampling.constraint is not None
            seen["preempted with penalties"] += sampling.repetition_penalty != 1.0
            seen["preempted with logprobs"] += sampling.logprobs is not None
            seen["preempted behind a prefix hit"] += sequence.num_cached_tokens > 0
        return plan


@dataclass
class Model:
    """A checkpoint in one run form and one KV type, loaded once for each of ENGINES."""

    source: Path
    options: dict[str, Any]
    tokenizer: Tokenizer
    end_token_id: int
    engines: dict[tuple[int, int], Engine] = field(default_factory=dict)
    alone: dict[Asked, list[Choice]] = field(default_factory=dict)

    @classmethod
    def open(cls, source: Path, **options: Any) -> "Model":
        text = open_checkpoint(demo_model()).text
        return cls(source, options, make_tokenizer(text), min(text.end_token_ids))

    def load(self, threads: int, block_size: int) -> Engine:
        """From the file."""
        config = EngineConfig(
            executor=EXECUTOR,
            threads=threads,
            block_size=block_size,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_STEP_TOKENS,
            **self.options,
        )
        engine = load_engine(self.source, config, lambda message: None)[0]
        engine._grammars = Grammars(lambda: self.tokenizer)  # of the demo's layers the folder has no tokenizer
        return engine

    def cold(self, kind: tuple[int, int], limits: SchedulerLimits, cache: KVCache, seen: Counter[str]) -> Engine:
        """An engine whose prefix tree and queues are empty, over an executor that has been used."""
        if kind not in self.engines:
            self.engines[kind] = self.load(*kind)
        engine = self.engines[kind]
        engine._kv_cache, engine._scheduler = cache, WatchedScheduler(limits, cache, seen)
        num_pool_tokens = cache.num_blocks * cache.block_size
        engine.limits = ModelLimits(
            vocab_size=engine.limits.vocab_size, max_model_len=MAX_MODEL_LEN, num_pool_tokens=num_pool_tokens
        )
        return engine

    def answer_alone(self, asked: Asked) -> list[Choice]:
        """On a cold engine of one thread: the whole prompt in a step, no prefix cache, nobody else."""
        if asked not in self.alone:
            threads, size = ENGINES[0]
            cache = KVCache(num_blocks=MAX_MODEL_LEN // size * 3, block_size=size, enable_prefix_caching=False)
            limits = SchedulerLimits(max_num_seqs=asked.sampling.n, max_num_batched_tokens=MAX_STEP_TOKENS)
            self.alone[asked] = answer(self.cold((threads, size), limits, cache, Counter()), self.tokenizer, asked)
        return self.alone[asked]


class Run:
    """An engine and all that it was asked: the parent's side of it, by way of bytes, as it comes over the socket."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine = engine
        self.running: dict[str, Running] = {}
        self._tokenizer = tokenizer

    def submit(self, request_id: str, asked: Asked) -> None:
        sampling = asked.sampling
        fields = {name: getattr(sampling, name) for name in wire.Sampling.__struct_fields__}
        submit = wire.Submit(
            request_id=request_id, prompt_token_ids=list(asked.prompt), sampling=wire.Sampling(**fields)
        )
        assemblers = [ChoiceAssembler(self._tokenizer, sampling, choice) for choice in range(sampling.n)]
        self.running[request_id] = Running(asked, assemblers, [[] for _ in assemblers])
        accepted = self.engine.submit(submit)
        if accepted is None:  # its grammar is compiled
            while not self.engine._waiting_room.has_news():
                time.sleep(0.001)
            self.step()
            (accepted,) = self.engine.take_answers()
        assert isinstance(accepted, wire.Accepted), accepted

    def step(self) -> None:
        step = wire.decode_up(wire.encode(self.engine.step()))
        assert isinstance(step, wire.Step)
        for event in step.events:
            running = self.running[event.request_id]
            delta = running.assemblers[event.choice].push(event)
            if delta is None:
                continue
            running.deltas[event.choice].append(delta)
            if delta.finish_reason is not None and event.finish_reason is None:
                self.engine.abort(wire.Abort(request_id=event.request_id, choice=event.choice, finish_reason="stop"))

    def finish(self) -> None:
        for _ in range(5000):
            while len(self.engine._late_masks) and not self.engine.has_work():
                time.sleep(0.001)
            if not self.engine.has_work():
                break
            self.step()
        self.engine.check()
        assert self.engine.stats().values["num_requests"] == 0, "somebody waits for ever"

    def choices(self, request_id: str) -> list[Choice]:
        return [_join(deltas) for deltas in self.running[request_id].deltas]


def _join(deltas: list[TextDelta]) -> Choice:
    return Choice(
        tuple(token_id for delta in deltas for token_id in delta.token_ids),
        "".join(delta.text for delta in deltas),
        tuple(logprob for delta in deltas for logprob in delta.logprobs),
        deltas[-1].finish_reason,
        deltas[-1].stop_reason,
    )


def answer(engine: Engine, tokenizer: Tokenizer, asked: Asked) -> list[Choice]:
    run = Run(engine, tokenizer)
    run.submit("alone", asked)
    run.finish()
    return run.choices("alone")


def draw_asked(draw: random.Random, tokenizer: Tokenizer, end_token_id: int) -> Asked:
    """Prompts from a few stems, so that prefixes meet, part and repeat."""
    ids = tokenizer.encode(TEXT)
    start = draw.choice((0, 0, 0, 23, 61))
    length = draw.randint(200, 390) if draw.random() < 0.05 else draw.randint(5, 70)
    tail = [draw.choice(ids) for _ in range(draw.choice((0, 0, 1, 3)))]
    prompt = (ids[start : start + length] + tail)[:400]
    return Asked(tuple(prompt), draw_sampling(draw, ids, end_token_id))


def draw_constrained(draw: random.Random, tokenizer: Tokenizer, end_token_id: int) -> Asked:
    """The same, with an output that has to match something."""
    asked = draw_asked(draw, tokenizer, end_token_id)
    sampling = msgspec.structs.replace(asked.sampling, constraint=draw.choice(CONSTRAINTS), stop=())
    return Asked(asked.prompt, sampling)


def draw_sampling(draw: random.Random, ids: list[int], end_token_id: int) -> SamplingParams:
    max_tokens = draw.randint(4, 16) if draw.random() < 0.7 else draw.randint(24, 44)  # some outgrow their blocks
    fields: dict[str, Any] = {"temperature": 0.0 if draw.random() < 0.45 else draw.choice((0.5, 0.8, 1.3))}
    if draw.random() < 0.4:
        fields |= {"top_p": draw.choice((0.5, 0.95)), "top_k": draw.choice((0, 3, 40)), "min_p": draw.choice((0, 0.02))}
    if draw.random() < 0.35:
        fields |= {
            "presence_penalty": draw.choice((0.0, 1.0)),
            "frequency_penalty": draw.choice((0.0, -0.5, 0.7)),
            "repetition_penalty": draw.choice((0.8, 1.3)),
            "min_tokens": draw.randint(0, 4),
        }
    if draw.random() < 0.3:
        fields["logit_bias"] = {end_token_id: draw.choice((6.0, 12.0)), draw.choice(ids): 3.0}
    if draw.random() < 0.25:
        fields["stop"] = (draw.choice((" the", "e", "。")), draw.choice((".", "\n")))
    if draw.random() < 0.2:
        fields["stop_token_ids"] = draw.sample(ids, 6)
    return SamplingParams(
        n=draw.choice((1, 1, 1, 2, 3)),
        seed=draw.getrandbits(60),
        max_tokens=max_tokens,
        logprobs=draw.choice((None, None, 0, 5)),
        **fields,
    )


def note_request(asked: Asked, choices: list[Choice], seen: Counter[str]) -> None:
    """What was asked, and how it ended."""
    sampling = asked.sampling
    is_sampled = sampling.temperature > 0
    seen["n over 1"] += sampling.n > 1
    seen["top_p"] += is_sampled and sampling.top_p < 1
    seen["top_k"] += is_sampled and sampling.top_k > 0
    seen["min_p"] += is_sampled and sampling.min_p > 0
    seen["penalties"] += sampling.repetition_penalty != 1.0
    seen["logit bias"] += bool(sampling.logit_bias)
    seen["min_tokens"] += sampling.min_tokens > 0
    seen["constrained, sampled"] += is_sampled and sampling.constraint is not None
    seen["constrained choice of several"] += sampling.n > 1 and sampling.constraint is not None
    for choice in choices:
        seen["a trigger's grammar held"] += sampling.constraint is CONSTRAINTS[2] and "[[" in choice.text
        seen["forced with logprobs"] += sampling.constraint is CONSTRAINTS[0] and len(choice.logprobs) > 0
        seen["logprobs"] += len(choice.logprobs) > 0
        seen["text beyond ASCII"] += not choice.text.isascii()
        kind = "stop string" if isinstance(choice.stop_reason, str) else "stop token"
        kind = "end token" if choice.stop_reason is None else kind
        seen["length" if choice.finish_reason == "length" else kind] += 1


class Mix:
    """Some requests, together on an engine whose limits are drawn."""

    def __init__(self, model: Model, requests: list[Asked], seed: int, seen: Counter[str]) -> None:
        self.draw = draw = random.Random(seed)
        self.seen = seen
        self.model = model
        self.asked = [draw.choice(requests) for _ in range(draw.randint(2, 5))]
        threads, size = kind = draw.choice(ENGINES)
        most = max(-(-(len(asked.prompt) + (asked.sampling.max_tokens or 0)) // size) for asked in self.asked)
        max_num_seqs = draw.choice((1, 3, 4, MAX_NUM_SEQS, MAX_NUM_SEQS))
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=draw.choice((max_num_seqs, 13, 32, 100, MAX_MODEL_LEN)) + max_num_seqs,
            enable_chunked_prefill=draw.random() < 0.8,
        )
        self.cache = KVCache(
            num_blocks=most + draw.choice((0, 0, 1, 1, 2, 3, 40)),
            block_size=size,
            enable_prefix_caching=draw.random() < 0.85,
        )
        seen[f"threads {threads}"] += 1
        seen["blocks of 32"] += size == 32
        seen["no prefix cache"] += not self.cache.enable_prefix_caching
        self.run = Run(model.cold(kind, limits, self.cache, seen), model.tokenizer)

    def play(self) -> None:
        for number, asked in enumerate(self.asked):
            self.run.submit(str(number), asked)
            for _ in range(self.draw.choice((0, 0, 1, 3, 6))):
                self.run.step()
            self.hold(self.draw.random() < 0.3)
        self.hold(False)
        self.run.finish()
        self.seen["prefix hit"] += self.cache.num_prefix_hits > 0

    def hold(self, is_held: bool) -> None:
        """One of them, or none any more."""
        for request_id in self.run.running if not is_held else [self.draw.choice(list(self.run.running))]:
            self.seen["held"] += is_held and request_id in self.run.engine._requests
            self.run.engine.hold(wire.Hold(request_id=request_id, is_held=is_held))

    def compare(self) -> None:
        for number, asked in enumerate(self.asked):
            right, mine = self.model.answer_alone(asked), self.run.choices(str(number))
            note_request(asked, mine, self.seen)
            where = f"request {number} of {len(self.asked)}, {len(asked.prompt)} tokens, {asked.sampling}"
            assert [choice.token_ids for choice in mine] == [choice.token_ids for choice in right], where
            assert mine == right, where


@pytest.fixture(scope="module")
def demo() -> Path:
    return demo_model()


@pytest.fixture(scope="module")
def layers(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's first layers as a bfloat16 folder."""
    return write_demo_layers(demo, tmp_path_factory.mktemp("mixes") / "layers")


def play_mixes(model: Model, num_mixes: int, seen: Counter[str]) -> None:
    draw = random.Random(11)
    requests = [draw_asked(draw, model.tokenizer, model.end_token_id) for _ in range(NUM_REQUESTS)]
    requests += [draw_constrained(draw, model.tokenizer, model.end_token_id) for _ in range(NUM_CONSTRAINED)]
    for seed in range(num_mixes):
        mix = Mix(model, requests, seed, seen)
        mix.play()
        mix.compare()


def test_each_answer_of_200_mixes_is_bit_for_bit_that_of_the_request_alone(demo: Path) -> None:
    seen: Counter[str] = Counter()
    model = Model.open(demo)
    play_mixes(model, NUM_MIXES, seen)
    assert {condition for condition in CONDITIONS if not seen[condition]} == set()
    compare_with_a_fresh_process_state(model)


def compare_with_a_fresh_process_state(model: Model) -> None:
    """Some of the references again, on an executor and an engine that nobody has used."""
    sample = list(model.alone)[:: max(1, len(model.alone) // 6)]
    for threads, size in ENGINES[:2]:
        fresh = model.load(threads, size)
        for asked in sample:
            assert answer(fresh, model.tokenizer, asked) == model.alone[asked]
    assert len(sample) >= 6


@pytest.mark.parametrize(
    ("num_mixes", "options"),
    [
        (20, {"kv_cache_dtype": "int8"}),
        (10, {"kv_cache_dtype": "bfloat16"}),
        (10, {"quantization": None}),
        (10, {"quantization": "int8"}),
    ],
    ids=["int8 KV", "bfloat16 KV", "bf16", "int8"],
)
def test_the_same_holds_for_other_run_forms(
    num_mixes: int, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    seen: Counter[str] = Counter()
    source = request.getfixturevalue("layers" if "quantization" in options else "demo")
    play_mixes(Model.open(source, **options), num_mixes, seen)
    assert {condition for condition in CORE_CONDITIONS if not seen[condition]} == set()
