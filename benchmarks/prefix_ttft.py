"""Time to the first token of a prompt whose first 1,500 tokens are in the prefix cache, against one that is new.

    prefix_ttft.py MODEL [--prefix 1500] [--rounds 5] [--at-least 5]

Each round has a prefix of its own and two prompts that share it and differ after it. The exit status is 1 where the
median of first / second is under --at-least.
"""

import argparse
import random
import statistics
import sys
import time

from machine import describe_machine, usable_cores

from headway import LLM, SamplingParams

SUFFIX_TOKENS = 16
BLOCK_SIZE = 16


def time_first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to a first token, and how many prompt tokens the cache had."""
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    start = time.perf_counter()
    (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling)
    return time.perf_counter() - start, output.num_cached_tokens


def run_round(llm: LLM, rng: random.Random, prefix_tokens: int) -> tuple[float, float]:
    """Seconds of the first and of the second prompt. Raises SystemExit when the cache did not do its part."""

    def draw(count: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(count)]

    prefix = draw(prefix_tokens)
    first, first_cached = time_first_token(llm, prefix + draw(SUFFIX_TOKENS))
    second, second_cached = time_first_token(llm, prefix + draw(SUFFIX_TOKENS))
    right = prefix_tokens // BLOCK_SIZE * BLOCK_SIZE
    if (first_cached, second_cached) != (0, right):
        raise SystemExit(f"cached tokens are {first_cached} and {second_cached}, they must be 0 and {right}")
    return first, second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefix", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--at-least", type=float)
    arguments = parser.parse_args()
    print(describe_machine())
    length = arguments.prefix + SUFFIX_TOKENS + BLOCK_SIZE
    llm = LLM(arguments.model, threads=arguments.threads, max_model_len=length, block_size=BLOCK_SIZE)
    rng = random.Random(0)
    run_round(llm, rng, arguments.prefix)  # warm-up
    rounds = [run_round(llm, rng, arguments.prefix) for _ in range(arguments.rounds)]
    first, second = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"\nTime to first token, {arguments.prefix} shared tokens + {SUFFIX_TOKENS}, median of {arguments.rounds}:")
    print(f"  first {first * 1e3:.1f} ms, second {second * 1e3:.1f} ms, first / second {ratio:.1f}")
    if arguments.at_least is not None and ratio < arguments.at_least:
        print(f"BELOW THE BAR: {ratio:.1f}, at least {arguments.at_least}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
