"""The offline workloads that every engine runs: random prompt tokens, greedy, no early stop.

An engine's script calls run_engine() with its own generate(); it is started once a round, and prints one JSON line a
workload on standard output (see Measurement) and nothing else. Prompts are token ids, so no tokenizer takes part, and
they differ from round to round, so that no prefix cache can help; they are the same for every engine.
Standard library alone: each peer runs it in an environment of its own.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

TokenIds = list[int]
Generate = Callable[[list[TokenIds], int], int]
"""Runs one whole workload (prompts, output tokens a prompt) and returns how many tokens it made."""


@dataclass(frozen=True)
class Workload:
    """Equal requests that are there at once."""

    name: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int

    def prompts(self, round_: int) -> list[TokenIds]:
        """[num_requests] prompts; other ones each round."""
        rng = random.Random(f"{self.name}/{round_}")
        return [[rng.randrange(1000, 40000) for _ in range(self.prompt_tokens)] for _ in range(self.num_requests)]


WARM_UP = Workload("warm-up", 1, 32, 16)
WORKLOADS = {
    w.name: w
    for w in (
        Workload("prefill-512", 1, 512, 1),
        Workload("prefill-2048", 1, 2048, 1),
        Workload("single-128", 1, 32, 128),
        Workload("eight-128", 8, 32, 128),
        Workload("mixed-32", 32, 128, 128),
        Workload("sixty-four-128", 64, 32, 128),
        Workload("long-context-8", 8, 1536, 64),
    )
}


@dataclass(frozen=True)
class Measurement:
    """One workload, once."""

    engine: str
    workload: str
    round: int
    seconds: float
    output_tokens: int
    """As counted: an engine that stops early makes fewer than the workload has."""
    total_tokens: int

    @property
    def wanted_tokens(self) -> int:
        """What output_tokens has to be."""
        workload = WORKLOADS[self.workload]
        return workload.num_requests * workload.output_tokens


def measure(engine: str, workload: Workload, round_: int, generate: Generate) -> Measurement:
    """Runs and times one workload."""
    prompts = workload.prompts(round_)
    start = time.perf_counter()
    made = generate(prompts, workload.output_tokens)
    seconds = time.perf_counter() - start
    total = made + workload.num_requests * workload.prompt_tokens
    return Measurement(engine, workload.name, round_, seconds, made, total)


def make_parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every engine's script has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the model's file or folder, in the form that this engine takes")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names with commas between them")
    parser.add_argument("--round", type=int, default=0, help="which prompts")
    parser.add_argument("--threads", type=int, required=True, help="compute threads")
    return parser


def run_engine(engine: str, arguments: argparse.Namespace, generate: Generate) -> None:
    """Warms up, then runs the workloads that were asked for and prints a line each."""
    measure(engine, WARM_UP, arguments.round, generate)
    for name in arguments.workloads.split(","):
        print(json.dumps(asdict(measure(engine, WORKLOADS[name], arguments.round, generate))), flush=True)
