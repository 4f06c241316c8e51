"""A model whose answers are worked out from the token list alone, run over a real block table.

The executor stores (token, position) at each slot and answers from what it gathers through the block tables; so a wrong
block, slot, position or stale entry changes the answer, and `next_token` says what is right.
"""

import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.executor.base import Float32, Int32, StepArrays

VOCAB_SIZE = 50
END = 0


def next_token(token_ids: Sequence[int]) -> int:
    """What the fake model says after these tokens."""
    return zlib.crc32(bytes(token_ids)) % VOCAB_SIZE


def continuation(prompt: Sequence[int], max_tokens: int, ends: Collection[int] = (END,)) -> list[int]:
    """The right output, end token included."""
    token_ids = list(prompt)
    while len(token_ids) < len(prompt) + max_tokens:
        token_ids.append(next_token(token_ids))
        if token_ids[-1] in ends:
            break
    return token_ids[len(prompt) :]


class FakeExecutor:
    """See above. `before_step` may raise, or look at the arrays; logits of `poisoned` contexts are NaN."""

    vocab_size = VOCAB_SIZE

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.memory = np.full((num_blocks * block_size, 2), -1, np.int64)
        self.before_step: Callable[[StepArrays], None] = lambda step: None
        self.is_poisoned: Callable[[list[int]], bool] = lambda token_ids: False
        self.has_blocks_ahead = False
        """A table may have blocks behind its context: of tokens that are computed anew."""
        self.steps: list[StepArrays] = []

    def execute(self, step: StepArrays) -> Float32:
        self.steps.append(step)
        self.before_step(step)
        assert len(set(step.slots.tolist())) == len(step.slots)
        self.memory[step.slots, 0] = step.token_ids
        self.memory[step.slots, 1] = step.positions
        seqs = np.searchsorted(step.query_starts, step.logit_rows, side="right") - 1
        logits = np.zeros((len(step.logit_rows), VOCAB_SIZE), np.float32)
        for index, seq in enumerate(seqs):
            position = int(step.positions[step.logit_rows[index]])
            context = self._context(step, int(seq))[: position + 1]
            logits[index, next_token(context)] = 1.0
            if self.is_poisoned(context):
                logits[index] = np.nan
        return logits

    def _context(self, step: StepArrays, seq: int) -> list[int]:
        length = int(step.context_lens[seq])
        num_blocks = -(-length // self.block_size)
        assert self.has_blocks_ahead or not step.block_tables[seq, num_blocks:].any()
        slots = (step.block_tables[seq, :num_blocks, None] * self.block_size + np.arange(self.block_size)).ravel()
        assert self.memory[slots[:length], 1].tolist() == list(range(length))
        return self.memory[slots[:length], 0].tolist()


@dataclass
class FakeSampled:
    token_ids: Int32
    is_finite: np.ndarray
    logprobs: Float32
    top_ids: Int32
    top_logprobs: Float32


class FakeSampler:
    """Greedy, in numpy. Rows of seed 666 raise: when set up (choice 1), or when sampled (choice 0)."""

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.rows: dict[int, dict[str, object]] = {}
        self.most_rows = 0
        """In one call."""

    def set_row(self, row: int, sampling: wire.Sampling, **others: object) -> None:
        if others["seed"] == 666 and others["choice"] == 1:
            raise ValueError("a row that can not be set up")
        self.rows[row] = {"sampling": sampling, **others}

    def sample(self, logits: Float32, rows: Int32, num_tokens: Int32) -> FakeSampled:
        assert logits.shape == (len(rows), VOCAB_SIZE)
        self.most_rows = max(self.most_rows, len(rows))
        for row in rows.tolist():
            if self.rows[row]["seed"] == 666:
                raise ValueError("a row that can not be sampled")
        top = np.argsort(-logits, axis=1, kind="stable")[:, :5].astype(np.int32)
        return FakeSampled(
            token_ids=top[:, 0].copy(),
            is_finite=np.isfinite(logits).all(axis=1),
            logprobs=np.full(len(rows), -0.5, np.float32),
            top_ids=top,
            top_logprobs=np.take_along_axis(logits, top, axis=1),
        )


@dataclass
class Rig:
    """An engine over the fakes, and everything that it has said."""

    engine: Engine
    executor: FakeExecutor
    sampler: FakeSampler
    kv_cache: KVCache
    steps: list[wire.Step] = field(default_factory=list)

    def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        priority: int = 0,
        tenant: str = "",
        cache_salt: str = "",
        **sampling: object,
    ) -> wire.Accepted | wire.Refused:
        """A request, as the parent sends it."""
        submit = wire.Submit(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling=wire.Sampling(temperature=0.0, **sampling),
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
        )
        return self.engine.submit(submit)

    def expect(self, prompt: Sequence[int], max_tokens: int, ends: Collection[int] = (END,)) -> tuple[list[int], str]:
        """What output() must be: the tokens worked out from the prompt alone, and stop or length."""
        tokens = continuation(prompt, max_tokens, ends)
        return tokens, "stop" if tokens[-1] in ends else "length"

    def step(self) -> wire.Step:
        """One step, with every invariant checked after it."""
        step = self.engine.step()
        self.engine.check()
        self.steps.append(step)
        return step

    def run(self, max_steps: int = 2000) -> None:
        """Until there is nothing to do."""
        for _ in range(max_steps):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def events(self, request_id: str, choice: int = 0) -> list[wire.TokenEvent]:
        """What one choice was told."""
        return [e for step in self.steps for e in step.events if (e.request_id, e.choice) == (request_id, choice)]

    def output(self, request_id: str, choice: int = 0) -> tuple[list[int], str | None]:
        """One choice's tokens and finish reason; there is exactly one terminal event, and it is the last."""
        events = self.events(request_id, choice)
        assert [event.finish_reason is not None for event in events] == [False] * (len(events) - 1) + [True]
        return [token for event in events for token in event.token_ids], events[-1].finish_reason

    def check_idle(self) -> None:
        """Nothing is left of any request."""
        assert not self.engine.has_work()
        self.engine.check()
        stats = self.engine.stats().values
        assert [stats[name] for name in ("num_requests", "num_running", "num_waiting", "num_used_blocks")] == [0] * 4
        assert stats["num_free_blocks"] + stats["num_cached_blocks"] == stats["num_blocks"]


@pytest.fixture(scope="session")
def make_rig() -> Callable[..., Rig]:
    """Makes a rig; keywords are EngineConfig's, with num_blocks, max_model_len and now."""

    def make(
        *,
        num_blocks: int = 64,
        max_model_len: int = 200,
        now: Callable[[], float] = time.perf_counter,
        **config: object,
    ) -> Rig:
        settings = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 4, "seed": 1, **config}
        engine_config = EngineConfig(**settings)
        block_size = engine_config.block_size
        executor = FakeExecutor(num_blocks, block_size)
        executor.has_blocks_ahead = not engine_config.enable_kv_cache
        sampler = FakeSampler(engine_config.max_num_seqs, max_model_len)
        has_tree = engine_config.enable_prefix_caching and engine_config.enable_kv_cache
        kv_cache = KVCache(num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=has_tree)
        engine = Engine(
            executor=executor,
            sampler=sampler,
            kv_cache=kv_cache,
            config=engine_config,
            max_model_len=max_model_len,
            end_token_ids=frozenset({END}),
            now=now,
        )
        return Rig(engine, executor, sampler, kv_cache)

    return make
