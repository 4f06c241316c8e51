"""The cost of a step beside the model, in calls and not in time. benchmarks/ measures the time."""

import gc
import sys

import numpy as np

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.executor.base import Float32, Int32, StepArrays

NUM_SEQS = 64
VOCAB_SIZE = 8


class IdleExecutor:
    """Computes nothing."""

    vocab_size = VOCAB_SIZE

    def execute(self, step: StepArrays) -> Float32:
        return np.zeros((len(step.logit_rows), VOCAB_SIZE), np.float32)


class IdleSampler:
    """Always says 7."""

    class Sampled:
        def __init__(self, num: int) -> None:
            self.token_ids = np.full(num, 7, np.int32)
            self.is_finite = np.ones(num, bool)
            self.logprobs = np.zeros(num, np.float32)
            self.top_ids = np.zeros((num, 0), np.int32)
            self.top_logprobs = np.zeros((num, 0), np.float32)

    def __init__(self) -> None:
        self.token_ids = np.zeros((NUM_SEQS, 4096), np.int32)

    def set_row(self, row: int, sampling: wire.Sampling, **others: object) -> None:
        pass

    def sample(self, logits: Float32, rows: Int32, num_tokens: Int32) -> Sampled:
        return self.Sampled(len(rows))


def make_engine(num_seqs: int, num_prompt: int) -> Engine:
    """With so many streams, all past their prompts."""
    engine = Engine(
        executor=IdleExecutor(),
        sampler=IdleSampler(),
        kv_cache=KVCache(num_blocks=16_384, block_size=16),
        config=EngineConfig(max_num_seqs=NUM_SEQS, max_num_batched_tokens=8192, seed=1),
        max_model_len=4096,
        end_token_ids=frozenset({0}),
    )
    for number in range(num_seqs):
        prompt = [1 + (number >> shift) % 7 for shift in range(0, num_prompt * 3, 3)]
        sampling = wire.Sampling(temperature=0.0, max_tokens=500, ignore_eos=True)
        engine.submit(wire.Submit(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    while len(engine.step().events) < num_seqs:
        pass
    return engine


def calls_a_step(engine: Engine, num_steps: int = 32) -> float:
    """Calls of functions, Python's and C's, over two blocks' worth of steps."""
    num_calls = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    gc.disable()  # what else is just collected does not count
    sys.setprofile(note)
    try:
        for _ in range(num_steps):
            engine.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return num_calls / num_steps


def test_a_stream_costs_a_few_calls_a_step_and_no_more_in_a_long_context():
    one, many, long = (calls_a_step(make_engine(*sizes)) for sizes in ((1, 40), (64, 40), (64, 2000)))
    assert (many - one) / 63 < 15
    assert long < 1.1 * many
