"""The longest gaps in running streams while long prompts arrive, through HTTP.

    latency.py MODEL [--chunks default,64,128,256] [--seconds 60] [--at-most-ms 150]

8 streams run; a prompt of 2,048 tokens comes every 2 s and wants one token. Of each stream and each 2 s, the longest
time between two events counts; printed are the median, the 99th percentile and the largest of these, for each value of
--max-num-batched-tokens (default: the server's own). The exit status is 1 where the first value's 99th percentile is
over --at-most-ms. Where the machine cannot compute a prompt in 2 s, prompts queue up: that lengthens their own wait,
and must not lengthen the gaps.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from machine import describe_machine, usable_cores
from processes import run_server
from stream_client import MODEL_NAME, RunningStreams, Stream

NUM_STREAMS, STREAM_PROMPT_TOKENS = 8, 32
LONG_PROMPT_TOKENS, PERIOD_S = 2048, 2.0
MAX_MODEL_LEN = 8192
SETTLE_S = 2.0


@dataclass(frozen=True)
class Gaps:
    """Milliseconds: the longest gap of each stream in each period."""

    longest: tuple[float, ...]
    tokens_per_s: float
    """Of the streams together."""
    num_answered: int
    num_sent: int

    @property
    def p99(self) -> float:
        """The 99th percentile."""
        return sorted(self.longest)[int(0.99 * (len(self.longest) - 1))]

    def as_row(self, chunk: str) -> str:
        """A line of the table."""
        middle, largest = statistics.median(self.longest), max(self.longest)
        answered = f"{self.num_answered} of {self.num_sent}"
        return f"| {chunk} | {middle:.0f} | **{self.p99:.0f}** | {largest:.0f} | {self.tokens_per_s:.0f} | {answered} |"


class Load(RunningStreams):
    """The streams and the prompts that come between them."""

    def run(self, seconds: float) -> tuple[float, float, list[Stream]]:
        """Lets streams start, then sends a prompt a period; when the first was sent, the end, and the prompts."""
        self.read_until(time.perf_counter() + SETTLE_S)
        begin, prompts = time.perf_counter(), []
        for period in range(int(seconds / PERIOD_S)):
            prompts.append(self.send(LONG_PROMPT_TOKENS, 1))
            self.read_until(begin + (period + 1) * PERIOD_S)
        return begin, time.perf_counter(), prompts


def longest_gaps(stream: Stream, begin: float, end: float) -> list[float]:
    """Milliseconds, one a period; a gap counts where it ends, and one that has not ended counts in the last period."""
    arrivals = [time for time in stream.arrivals if time >= begin]
    longest = [0.0] * int((end - begin) / PERIOD_S + 0.5)
    for before, after in zip([begin, *arrivals], [*arrivals, end], strict=True):
        period = min(int((after - begin) / PERIOD_S), len(longest) - 1)
        longest[period] = max(longest[period], (after - before) * 1e3)
    return longest


def measure(arguments: argparse.Namespace, chunk: str) -> Gaps:
    """One server with this chunk. Raises SystemExit where a stream ended early."""
    flags = ["--served-model-name", MODEL_NAME, "--threads", str(arguments.threads), "--executor", arguments.executor]
    flags += ["--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory", str(4 * 2**30)]
    flags += [] if chunk == "default" else ["--max-num-batched-tokens", chunk]
    with run_server(arguments.model, arguments.port, flags):
        load = Load(
            arguments.port, "latency", NUM_STREAMS, STREAM_PROMPT_TOKENS, MAX_MODEL_LEN - 2 * STREAM_PROMPT_TOKENS
        )
        begin, end, prompts = load.run(arguments.seconds)
        load.close()
    if any(b"[DONE]" in stream.tail or not stream.arrivals for stream in load.streams):
        raise SystemExit("a stream ended, or never began, while the prompts came: it must run all the time")
    longest = [gap for stream in load.streams for gap in longest_gaps(stream, begin, end)]
    tokens = sum(1 for stream in load.streams for time in stream.arrivals if time >= begin)
    answered = sum(b"[DONE]" in prompt.tail for prompt in prompts)
    return Gaps(tuple(longest), tokens / (end - begin), answered, len(prompts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--chunks", default="default,64,128,256,512", help="values of --max-num-batched-tokens")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--port", type=int, default=8792)
    parser.add_argument("--at-most-ms", type=float, default=150.0)
    arguments = parser.parse_args()
    arguments.model = str(Path(arguments.model).resolve())
    print(describe_machine() + "\n", flush=True)
    print(f"Longest gap in ms of {NUM_STREAMS} streams, a prompt of {LONG_PROMPT_TOKENS} tokens every {PERIOD_S:g} s\n")
    print("| tokens a step | median | p99 | largest | streams, tok/s | prompts answered |\n" + "|---" * 6 + "|")
    first: Gaps | None = None
    for chunk in arguments.chunks.split(","):
        gaps = measure(arguments, chunk)
        print(gaps.as_row(chunk), flush=True)
        first = first or gaps
    if first is not None and first.p99 > arguments.at_most_ms:
        print(f"BELOW THE BAR: p99 {first.p99:.0f} ms, at most {arguments.at_most_ms:g}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
