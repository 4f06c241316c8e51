"""Continuous batching against static and dynamic batches: output tokens a second of the same requests, offline.

    batching.py MODEL [--rounds 2] [--threads N] [--workloads uniform,skewed,hundred]

    uniform     128 requests of 10 to 200 output tokens, batches of 16      continuous at least 1.5 x static
    skewed      80 requests, 9 of 10 of 10 tokens and 1 of 200, of 16       at least 2 x
    hundred     100 requests of 10 to 500 tokens, batches of 10             at least 1.5 x; one round

Where outputs are spread evenly, static computes about the longest of a batch for each of its rows: the rows alone allow
1.8 x at most. All requests are there at once, so a batch is always full but for the last. Static computes rows that
have ended until its batch ends, as padded batches do; dynamic lets them go, and nobody in. The modes take turns, each
round has prompts of its own; medians of the rounds' ratios count, and the exit status is 1 where one is below its bar.
"""

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass

from machine import describe_machine, usable_cores

from headway import LLM, SamplingParams

MODES = ("static", "dynamic", "continuous")
PROMPT_TOKENS = 32
MAX_MODEL_LEN = 1024


@dataclass(frozen=True)
class Workload:
    """Requests by their output tokens."""

    name: str
    batch: int
    at_least: float
    """Continuous / static, of output tokens a second."""
    outputs: tuple[int, ...]
    max_rounds: int = 99


def make_workloads() -> list[Workload]:
    """The same each time: drawn with fixed seeds."""

    def draw(name: str, count: int, most: int) -> tuple[int, ...]:
        rng = random.Random(name)
        return tuple(rng.randint(10, most) for _ in range(count))

    skewed = [10] * 72 + [200] * 8
    random.Random("skewed").shuffle(skewed)
    return [
        Workload("uniform", 16, 1.5, draw("uniform", 128, 200)),
        Workload("skewed", 16, 2.0, tuple(skewed)),
        Workload("hundred", 10, 1.5, draw("hundred", 100, 500), max_rounds=1),
    ]


@dataclass(frozen=True)
class Run:
    """One workload, once."""

    tokens_per_s: float
    padding: float
    """Of the rows that were computed, those of requests that had ended."""


def run(llm: LLM, workload: Workload, round_: int) -> Run:
    """Raises SystemExit where an answer is not as long as was asked for."""
    rng = random.Random(f"{workload.name}/{round_}")
    prompts = [[rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)] for _ in workload.outputs]
    sampling = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in workload.outputs]
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(prompts, sampling)
    seconds = time.perf_counter() - start
    if [len(output.outputs[0].token_ids) for output in outputs] != list(workload.outputs):
        raise SystemExit(f"{workload.name}: the answers are not as long as was asked for")
    padding, computed = (llm.stats()[name] - before[name] for name in ("padding_tokens_total", "computed_tokens_total"))
    return Run(sum(workload.outputs) / seconds, padding / computed)


def measure(arguments: argparse.Namespace, workload: Workload) -> dict[str, list[Run]]:
    """The rounds of each mode. The modes take turns within a round."""
    flags = {"max_num_seqs": workload.batch, "max_model_len": MAX_MODEL_LEN, "threads": arguments.threads}
    llms = {mode: LLM(arguments.model, batching=mode, **flags) for mode in MODES}
    warm_up = Workload("warm-up", workload.batch, 0.0, (8,) * workload.batch)
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for llm in llms.values():
        run(llm, warm_up, 0)
    for round_ in range(min(arguments.rounds, workload.max_rounds)):
        for mode, llm in llms.items():
            runs[mode].append(run(llm, workload, round_))
    for llm in llms.values():
        llm.close()
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--workloads", default="uniform,skewed,hundred")
    arguments = parser.parse_args()
    print(describe_machine() + "\n")
    print("| requests | batch | static, tok/s | padding | dynamic | continuous | continuous / static | bar |")
    print("|---" * 8 + "|")
    is_below = False
    for workload in make_workloads():
        if workload.name not in arguments.workloads.split(","):
            continue
        runs = measure(arguments, workload)
        ratio = statistics.median(
            a.tokens_per_s / b.tokens_per_s for a, b in zip(runs["continuous"], runs["static"], strict=True)
        )
        static, dynamic, continuous = (statistics.median(each.tokens_per_s for each in runs[mode]) for mode in MODES)
        print(
            f"| {workload.name} | {workload.batch} | {static:.0f} | {runs['static'][0].padding:.0%} | {dynamic:.0f} | "
            f"{continuous:.0f} | **{ratio:.2f}** | {workload.at_least:g} |",
            flush=True,
        )
        is_below |= ratio < workload.at_least
    if is_below:
        print("\nBELOW THE BAR")
    return int(is_below)


if __name__ == "__main__":
    sys.exit(main())
