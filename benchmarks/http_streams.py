"""What HTTP costs: streams through a server against the same requests offline, and processor time a streamed token.

    http_streams.py MODEL [--rounds 3] [--many 64] [--flag=--executor=torch] [--server-only]

Bars: one stream at least 90% of single-128 offline; 64 streams at least 80% of sixty-four-128 offline once the client's
own processor time is taken off; server and wire at most 40 us a streamed token. Server and wire are all threads of the
server's process, and what the worker spends on reading and sending messages: prompts, parsing and connections count
too. --server-only leaves the offline runs out (for work on the server). The exit status is 1 below a bar.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from engines import HERE, run_script
from machine import describe_machine, usable_cores
from processes import CpuTimes, ServerProcesses, run_server
from stream_client import MODEL_NAME, Answers, make_request, stream_all
from workloads import WORKLOADS, Workload

SINGLE, MANY = WORKLOADS["single-128"], WORKLOADS["sixty-four-128"]


@dataclass(frozen=True)
class Streamed:
    """One workload through HTTP, once."""

    answers: Answers
    cpu: CpuTimes
    workload: Workload

    @property
    def rate(self) -> float:
        """Tokens a second, as the client saw it."""
        return self.answers.tokens / self.answers.seconds

    @property
    def rate_without_client(self) -> float:
        """Tokens a second of the time that was not the client's own processor time."""
        return self.answers.tokens / (self.answers.seconds - self.answers.client_cpu)

    @property
    def server_us(self) -> float:
        """Microseconds of server and wire a token."""
        return (self.cpu.server + self.cpu.wire) / self.answers.tokens * 1e6

    def describe(self) -> str:
        """One line."""
        tokens, cpu = self.answers.tokens, self.cpu
        return (
            f"  {self.workload.name}: {self.rate:,.1f} tok/s, {self.rate_without_client:,.1f} without the client's"
            f" {self.answers.client_cpu:.3f} s; a token: server {cpu.server / tokens * 1e6:.1f} us +"
            f" wire {cpu.wire / tokens * 1e6:.1f} us, client {self.answers.client_cpu / tokens * 1e6:.1f} us;"
            f" {tokens} tokens in {self.answers.events} events"
        )


def stream(workload: Workload, round_: int, port: int, server: ServerProcesses) -> Streamed:
    """Raises SystemExit where the number of tokens is not the workload's."""
    requests = [make_request(port, prompt, workload.output_tokens) for prompt in workload.prompts(round_)]
    before = server.cpu_times()
    answers = stream_all(port, requests)
    result = Streamed(answers, server.cpu_times() - before, workload)
    wanted = workload.num_requests * workload.output_tokens
    if answers.tokens != wanted:
        raise SystemExit(f"{workload.name}: the server made {answers.tokens} tokens of {wanted}")
    return result


def measure_offline(arguments: argparse.Namespace, round_: int) -> dict[str, float]:
    """Output tokens a second of both workloads, in a process of its own."""
    command = [sys.executable, str(HERE / "run_headway.py"), arguments.model, "--round", str(round_)]
    command += ["--threads", str(arguments.threads), "--workloads", f"{SINGLE.name},{MANY.name}"]
    command += ["--executor", arguments.executor]
    measured = run_script("headway", command, arguments.threads, is_ours=True)
    return {m.workload: m.output_tokens / m.seconds for m in measured}


def median_of(values: list[float]) -> float:
    """0 of none."""
    return statistics.median(values) if values else 0.0


def judge(streamed: list[Streamed], offline: list[dict[str, float]], arguments: argparse.Namespace) -> list[str]:
    """Prints the medians against the bars; what misses them."""
    one = [s for s in streamed if s.workload is SINGLE]
    many = [s for s in streamed if s.workload is MANY]
    cost = median_of([s.server_us for s in many])
    lines = [("server and wire at 64 streams, us a token", cost, arguments.at_most_us, cost <= arguments.at_most_us)]
    for name, rate, bar in (
        (SINGLE.name, median_of([s.rate for s in one]), arguments.at_least_one),
        (MANY.name, median_of([s.rate_without_client for s in many]), arguments.at_least_many),
    ):
        alone = median_of([rates[name] for rates in offline])
        if alone:
            print(f"  {name}: offline {alone:,.1f} tok/s, through HTTP {rate:,.1f}")
            lines.append((f"{name} through HTTP / offline", rate / alone, bar, rate / alone >= bar))
    for what, value, bar, _ in lines:
        print(f"  {what}: **{value:.2f}** (bar {bar:g})")
    return [f"{what}: {value:.2f}, the bar is {bar:g}" for what, value, bar, holds in lines if not holds]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--port", type=int, default=8791)
    parser.add_argument("--flag", action="append", default=[], help="one more flag of `headway serve`")
    parser.add_argument("--server-only", action="store_true")
    parser.add_argument("--at-most-us", type=float, default=40.0)
    parser.add_argument("--at-least-one", type=float, default=0.9)
    parser.add_argument("--at-least-many", type=float, default=0.8)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    print(describe_machine(), flush=True)
    flags = ["--threads", str(arguments.threads), "--executor", arguments.executor, "--no-enable-prefix-caching"]
    flags += [
        "--served-model-name",
        MODEL_NAME,
        "--max-model-len",
        "4096",
        "--kv-cache-memory",
        str(4 * 2**30),
        *arguments.flag,
    ]
    streamed: list[Streamed] = []
    offline: list[dict[str, float]] = []
    with run_server(str(Path(arguments.model).resolve()), arguments.port, flags) as server:
        stream(SINGLE, -1, arguments.port, server)  # warm-up
        for round_ in range(arguments.rounds):
            for workload in (SINGLE, MANY):
                streamed.append(stream(workload, round_, arguments.port, server))
                print(streamed[-1].describe(), flush=True)
            if not arguments.server_only:
                offline.append(measure_offline(arguments, round_))
    print(f"\nMedians of {arguments.rounds}, {arguments.threads} threads:")
    misses = judge(streamed, offline, arguments)
    for miss in misses:
        print(f"BELOW THE BAR: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
