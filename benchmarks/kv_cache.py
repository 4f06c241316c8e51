"""What the KV cache is worth: output tokens behind a prompt, with it and with --no-kv-cache, which computes the whole
sequence for each of them.

    kv_cache.py MODEL [--prompt 512] [--output 100] [--rounds 2] [--at-least 8]

Both give the same tokens: that is checked. The exit status is 1 where the median of the ratios is under --at-least.
"""

import argparse
import random
import statistics
import sys
import time

from machine import describe_machine, usable_cores

from headway import LLM, SamplingParams


def time_answer(llm: LLM, prompt: list[int], num_output: int) -> tuple[float, list[int]]:
    """Seconds, and the tokens."""
    sampling = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
    start = time.perf_counter()
    (output,) = llm.generate([{"prompt_token_ids": prompt}], sampling)
    return time.perf_counter() - start, output.outputs[0].token_ids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--output", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--at-least", type=float)
    arguments = parser.parse_args()
    print(describe_machine() + "\n", flush=True)
    flags = {"threads": arguments.threads, "max_model_len": arguments.prompt + arguments.output}
    llms = [LLM(arguments.model, **flags), LLM(arguments.model, enable_kv_cache=False, **flags)]
    rng = random.Random(0)
    rounds = []
    for round_ in range(arguments.rounds + 1):
        prompt = [rng.randrange(1000, 40000) for _ in range(arguments.prompt)]
        num_output = arguments.output if round_ else 4  # the first is a warm-up
        (with_s, tokens), (without_s, same) = (time_answer(llm, prompt, num_output) for llm in llms)
        if tokens != same or len(tokens) != num_output:
            raise SystemExit("with and without the KV cache the tokens differ")
        if round_:
            rounds.append((with_s, without_s))
    with_s, without_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(without / cached for cached, without in rounds)
    print(f"| {arguments.output} tokens behind {arguments.prompt} | seconds | tokens/s |\n|---|---|---|")
    print(f"| with the KV cache | {with_s:.2f} | {arguments.output / with_s:.1f} |")
    print(f"| without | {without_s:.2f} | {arguments.output / without_s:.1f} |")
    print(f"\nThe KV cache is {ratio:.1f} x as fast")
    if arguments.at_least is not None and ratio < arguments.at_least:
        print(f"BELOW THE BAR: {ratio:.1f}, at least {arguments.at_least:g}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
