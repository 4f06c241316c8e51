"""What a step costs beside the model: scheduler, batch arrays, sampler, events and messages at 64 sequences.

    step_overhead.py [--sequences 64] [--steps 300] [--temperature 0] [--top-p 1] [--logprobs K] [--at-most-ms 1.0]

The executor is faked: it hands out the same logits each step. Printed are the time a step, its parts, and the profile;
the exit status is 1 where the median is over --at-most-ms. The parent's side of the messages (reading a Step) is timed
apart: it runs in another process.
"""

import argparse
import cProfile
import pstats
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from machine import describe_machine, usable_cores

import headway_wire as wire
from headway.cache.kv_cache import KVCache
from headway.config import EngineConfig
from headway.engine.engine import Engine
from headway.engine.sampler import Sampler
from headway.executor.base import Float32, StepArrays

VOCAB_SIZE = 49_152
PROMPT_TOKENS = 32
BLOCK_SIZE = 16
WARM_UP_STEPS = 30
MEDIAN_LINE = re.compile(r"its work faked: ([0-9.]+) ms")
"""Finds the median in what this prints."""


class FakeExecutor:
    """The same rows of random logits each step, at no cost."""

    vocab_size = VOCAB_SIZE

    def __init__(self, num_rows: int) -> None:
        random = np.random.default_rng(0)
        self._logits = (random.standard_normal((num_rows, VOCAB_SIZE)) * 4).astype(np.float32)

    def execute(self, step: StepArrays) -> Float32:
        """Of as many rows as are wanted."""
        return self._logits[: len(step.logit_rows)]


def make_engine(arguments: argparse.Namespace) -> Engine:
    """An engine over the fake, with everything else real."""
    max_model_len = PROMPT_TOKENS + WARM_UP_STEPS + 3 * arguments.steps + 64
    config = EngineConfig(max_num_seqs=arguments.sequences, block_size=BLOCK_SIZE, enable_prefix_caching=True)
    num_blocks = (arguments.sequences + 1) * (max_model_len // BLOCK_SIZE + 1)
    sampler = Sampler(
        max_num_seqs=arguments.sequences,
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        threads=arguments.threads,
    )
    return Engine(
        executor=FakeExecutor(arguments.sequences),
        sampler=sampler,
        kv_cache=KVCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, enable_prefix_caching=True),
        config=config,
        max_model_len=max_model_len,
        end_token_ids=frozenset({2}),
    )


def submit_all(engine: Engine, arguments: argparse.Namespace) -> None:
    """Different prompts that run until they are stopped. Raises SystemExit if one is refused."""
    random = np.random.default_rng(1)
    sampling = wire.Sampling(
        temperature=arguments.temperature, top_p=arguments.top_p, ignore_eos=True, seed=1, logprobs=arguments.logprobs
    )
    for i in range(arguments.sequences):
        prompt = random.integers(1000, 40_000, PROMPT_TOKENS).tolist()
        answer = engine.submit(wire.Submit(request_id=str(i), prompt_token_ids=prompt, sampling=sampling))
        if isinstance(answer, wire.Refused):
            raise SystemExit(f"refused: {answer.error.message}")


def run_step(engine: Engine) -> bytes:
    """One step, and its message as it goes on the socket."""
    return wire.pack_frame(wire.encode(engine.step()))


@dataclass(frozen=True)
class Times:
    """Milliseconds a step."""

    median: float
    p99: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ms (99th percentile {self.p99:.3f})"


def time_calls(call: Callable[[], object], count: int) -> Times:
    """Each call timed on its own."""
    milliseconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    return Times(statistics.median(milliseconds), sorted(milliseconds)[int(0.99 * (count - 1))])


def print_profile(engine: Engine, steps: int) -> None:
    """The functions that a step spends its time in."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(steps):
        run_step(engine)
    profile.disable()
    print(f"\nProfile of {steps} steps (the profiler itself slows Python's part):")
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(18)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--logprobs", type=int)
    parser.add_argument("--at-most-ms", type=float)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    print(describe_machine())
    engine = make_engine(arguments)
    submit_all(engine, arguments)
    for _ in range(WARM_UP_STEPS):
        message = run_step(engine)
    step = wire.decode_up(message[4:])
    if not isinstance(step, wire.Step) or len(step.events) != arguments.sequences:
        raise SystemExit(f"the sequences do not all run: {step}")
    whole = time_calls(lambda: run_step(engine), arguments.steps)
    engine_alone = time_calls(engine.step, arguments.steps)
    reading = time_calls(lambda: wire.decode_up(message[4:]), arguments.steps)
    print(f"\nA step at {arguments.sequences} sequences, its work faked: {whole}")
    print(f"  of which the engine (scheduler, batch, sampler, events): {engine_alone}")
    print(f"  the message: {len(message)} bytes; reading it, in the parent: {reading}")
    print_profile(engine, min(200, arguments.steps))
    if arguments.at_most_ms is not None and whole.median > arguments.at_most_ms:
        print(f"OVER THE BAR: {whole.median:.3f} ms, at most {arguments.at_most_ms} ms")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
