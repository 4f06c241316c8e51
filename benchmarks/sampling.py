"""What sampling costs: sixty-four-128 at temperature 0.8 and top_p 0.95, and greedy with 5 logprobs, against greedy.

    sampling.py MODEL [--rounds 3] [--at-least 0.9] [--at-most-share 0.1]

Then, of a greedy step at 64 sequences, the share that is Python, sampler and messages: step_overhead.py's step, whose
model costs nothing, over the whole one. The exit status is 1 where a way of sampling is under --at-least of greedy's
rate, or that share over --at-most-share.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from engines import HERE, run_script
from machine import describe_machine, usable_cores
from step_overhead import MEDIAN_LINE
from workloads import WORKLOADS

WORKLOAD = WORKLOADS["sixty-four-128"]
WAYS: Mapping[str, Sequence[str]] = {
    "greedy": (),
    "temperature 0.8, top_p 0.95": ("--temperature", "0.8", "--top-p", "0.95"),
    "greedy with 5 logprobs": ("--logprobs", "5"),
}


def measure(arguments: argparse.Namespace, round_: int, flags: Sequence[str]) -> float:
    """Output tokens a second."""
    command = [sys.executable, str(HERE / "run_headway.py"), arguments.model, "--workloads", WORKLOAD.name]
    command += ["--round", str(round_), "--threads", str(arguments.threads), "--executor", arguments.executor, *flags]
    (measured,) = run_script("headway", command, arguments.threads, is_ours=True)
    return measured.output_tokens / measured.seconds


def measure_overhead(threads: int) -> float:
    """Milliseconds of a step at 64 sequences whose model costs nothing. Raises SystemExit where it cannot be read."""
    command = [sys.executable, str(HERE / "step_overhead.py"), "--threads", str(threads), "--sequences", "64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = MEDIAN_LINE.search(done.stdout)
    if found is None:
        raise SystemExit(f"step_overhead.py ended with status {done.returncode}:\n{done.stderr[-1000:]}")
    return float(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--at-least", type=float, default=0.9)
    parser.add_argument("--at-most-share", type=float, default=0.1)
    arguments = parser.parse_args()
    print(describe_machine() + "\n", flush=True)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_ in range(arguments.rounds):
        for way, flags in WAYS.items():
            rates[way].append(measure(arguments, round_, flags))
    greedy = statistics.median(rates["greedy"])
    misses = []
    print("| sixty-four-128 | tokens/s | of greedy |\n|---|---|---|")
    for way, measured in rates.items():
        share = statistics.median(measured) / greedy
        print(f"| {way} | {statistics.median(measured):,.1f} | **{share:.2f}** |")
        if share < arguments.at_least:
            misses.append(f"{way}: {share:.2f} of greedy, the bar is {arguments.at_least:g}")
    step_ms = WORKLOAD.num_requests / greedy * 1e3
    overhead_ms = measure_overhead(arguments.threads)
    share = overhead_ms / step_ms
    print(
        f"\nA step at 64: {step_ms:.1f} ms, of which Python, sampler and messages {overhead_ms:.2f} ms: **{share:.1%}**"
    )
    if share > arguments.at_most_share:
        misses.append(f"Python, sampler and messages: {share:.1%} of a step, the bar is {arguments.at_most_share:.0%}")
    for miss in misses:
        print(f"BELOW THE BAR: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
