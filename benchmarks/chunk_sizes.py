"""What the size of a prompt's chunks is worth: gaps of running streams against the wait of a long prompt, through HTTP.

    chunk_sizes.py MODEL [--sizes 128,256,512,1024,2048,4096] [--prompts 8]

8 streams run; a prompt of 2,048 tokens comes, wants one token, and the next one comes when it has it. Of the streams'
gaps between two events while a prompt is on its way, the median, the 99th percentile and the largest are printed,
beside the prompts' time to the first token. Rows: each size as --max-num-batched-tokens with --step-target 0, so that
the size alone decides; then --no-chunked-prefill; then the defaults, which cut by time. The exit status is 1 where the
chunks of 512 do not have a smaller 99th percentile than whole prompts.
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

NUM_STREAMS, STREAM_PROMPT_TOKENS, PROMPT_TOKENS = 8, 32, 2048
MAX_MODEL_LEN = 8192
SETTLE_S = 1.0
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Row:
    """Milliseconds."""

    gaps: tuple[float, ...]
    ttfts: tuple[float, ...]
    tokens_per_s: float
    """Of the streams together, while prompts were on their way."""

    @property
    def p99(self) -> float:
        """The 99th percentile of the gaps."""
        return sorted(self.gaps)[int(0.99 * (len(self.gaps) - 1))]

    def as_line(self, name: str) -> str:
        """Of the table."""
        middle, largest, ttft = statistics.median(self.gaps), max(self.gaps), statistics.median(self.ttfts)
        cells = f"{middle:.0f} | **{self.p99:.0f}** | {largest:.0f} | {ttft:.0f} | {max(self.ttfts):.0f}"
        return f"| {name} | {cells} | {self.tokens_per_s:.0f} |"


class Load(RunningStreams):
    """The streams, and one long prompt after the other."""

    def run(self, num_prompts: int) -> Row:
        """Raises SystemExit where a prompt is not answered, or a stream ended."""
        gaps: list[float] = []
        ttfts: list[float] = []
        num_tokens, seconds = 0, 0.0
        for _ in range(num_prompts):
            self.read_until(time.perf_counter() + SETTLE_S)
            prompt = self.send(PROMPT_TOKENS, 1)
            deadline = prompt.started + TIMEOUT_S
            while not prompt.arrivals and time.perf_counter() < deadline:
                self.read(1.0)
            if not prompt.arrivals:
                raise SystemExit(f"a prompt was not answered within {TIMEOUT_S:g} s")
            # The gap that the prompt made ends with the step that answered it: each stream's next event is waited for.
            while any(stream.arrivals[-1] < prompt.arrivals[0] for stream in self.streams):
                self.read(1.0)
            ttfts.append((prompt.arrivals[0] - prompt.started) * 1e3)
            for stream in self.streams:
                gaps += _gaps_since(stream, prompt.started)
                num_tokens += sum(arrival >= prompt.started for arrival in stream.arrivals)
            seconds += time.perf_counter() - prompt.started
        if any(b"[DONE]" in stream.tail for stream in self.streams):
            raise SystemExit("a stream ended: it must run all the time; ask for fewer prompts")
        return Row(tuple(gaps), tuple(ttfts), num_tokens / seconds)


def _gaps_since(stream: Stream, begin: float) -> list[float]:
    """Milliseconds between events; the first gap began before."""
    later = [arrival for arrival in stream.arrivals if arrival >= begin]
    before = stream.arrivals[len(stream.arrivals) - len(later) - 1]
    return [(after - earlier) * 1e3 for earlier, after in zip([before, *later], later, strict=False)]


def measure(arguments: argparse.Namespace, flags: list[str]) -> Row:
    """One server with these flags."""
    fixed = ["--served-model-name", MODEL_NAME, "--threads", str(arguments.threads)]
    fixed += ["--max-model-len", str(MAX_MODEL_LEN), "--kv-cache-memory", str(4 * 2**30)]
    with run_server(arguments.model, arguments.port, [*fixed, *flags]):
        load = Load(
            arguments.port, "chunk sizes", NUM_STREAMS, STREAM_PROMPT_TOKENS, MAX_MODEL_LEN - 2 * STREAM_PROMPT_TOKENS
        )
        row = load.run(arguments.prompts)
        load.close()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a folder")
    parser.add_argument("--sizes", default="128,256,512,1024,2048,4096")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--port", type=int, default=8793)
    arguments = parser.parse_args()
    arguments.model = str(Path(arguments.model).resolve())
    print(describe_machine() + "\n", flush=True)
    print(f"Gaps in ms of {NUM_STREAMS} streams while a prompt of {PROMPT_TOKENS} tokens is on its way\n")
    print(
        "| tokens a step | median | p99 | largest | TTFT of the prompt | largest | streams, tok/s |\n"
        + "|---" * 7
        + "|"
    )
    kinds = {size: ["--max-num-batched-tokens", size, "--step-target", "0"] for size in arguments.sizes.split(",")}
    kinds |= {"whole prompts": ["--no-chunked-prefill"], "default (by time)": []}
    rows: dict[str, Row] = {}
    for name, flags in kinds.items():
        rows[name] = measure(arguments, flags)
        print(rows[name].as_line(name), flush=True)
    if "512" in rows and rows["512"].p99 >= rows["whole prompts"].p99:
        print("BELOW THE BAR: chunks of 512 tokens do not shorten the gaps")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
