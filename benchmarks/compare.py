"""Runs engines in turn, several rounds, and prints medians and ratios as a Markdown table.

    compare.py --dir DIR [--engines headway,transformers] [--workloads eight-128,sixty-four-128] [--rounds 3]
               [--at-least transformers=1.0]

DIR is what prepare.sh laid out. Each round starts each engine once, in its own process, on that round's prompts; the
order of the engines turns from round to round. Compare only within one run, on a machine that is otherwise idle, and
quote the ratios, not the absolute figures. --at-least ENGINE=RATIO makes the exit status 1 where Headway's median
is less than RATIO times that engine's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import describe_machine, usable_cores
from workloads import WORKLOADS, Measurement

HERE = Path(__file__).resolve().parent
BF16 = "models/smollm2-135m-bf16"
GGUF = "models/smollm2-135m-q4_1.gguf"
PREFILL_WORKLOADS = frozenset({"prefill-512", "prefill-2048"})
"""Their rate counts the prompt's tokens; long-context-8 counts all; the others the output's."""
PROMPT_AND_OUTPUT = PREFILL_WORKLOADS | {"long-context-8"}


@dataclass(frozen=True)
class Engine:
    """How one engine is started."""

    script: str
    venv: str | None
    """Under DIR/venv; None: the environment that runs this."""
    model: str
    """Under DIR."""
    arguments: tuple[str, ...] = ()


ENGINES: Mapping[str, Engine] = {
    "headway": Engine("run_headway.py", None, BF16),
    "headway-q4_1": Engine("run_headway.py", None, GGUF),
    "transformers": Engine("peers/run_transformers.py", "transformers", BF16),
    "transformers-float32": Engine("peers/run_transformers.py", "transformers", BF16, ("--dtype", "float32")),
    "vllm": Engine("peers/run_vllm.py", "vllm", BF16),
    "openvino": Engine("peers/run_openvino.py", "openvino", GGUF),
    "ortgenai": Engine("peers/run_ortgenai.py", "ortgenai", "models/smollm2-135m-ort-int4"),
    "llamacpp-unified": Engine("peers/run_llamacpp.py", "llamacpp", GGUF, ("--kv", "unified")),
    "llamacpp-split": Engine("peers/run_llamacpp.py", "llamacpp", GGUF, ("--kv", "split")),
}


class EngineFailed(Exception):
    """An engine's process ended with an error, or printed what is no measurement."""


def run_once(name: str, folder: Path, workloads: Sequence[str], round_: int, threads: int) -> list[Measurement]:
    """One engine, one round. Raises EngineFailed with the end of what it wrote."""
    engine = ENGINES[name]
    python = sys.executable if engine.venv is None else str(folder / "venv" / engine.venv / "bin" / "python")
    command = [python, str(HERE / engine.script), str(folder / engine.model), "--workloads", ",".join(workloads)]
    command += ["--round", str(round_), "--threads", str(threads), *engine.arguments]
    paths = [str(HERE)] + ([str(HERE.parent / "src")] if engine.venv is None else [])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineFailed(f"{name} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    try:
        return [Measurement(**(json.loads(line) | {"engine": name})) for line in done.stdout.splitlines() if line]
    except (ValueError, TypeError) as error:
        raise EngineFailed(f"{name} printed what is no measurement ({error}):\n{done.stdout[-2000:]}") from error


def run_rounds(arguments: argparse.Namespace) -> Iterator[Measurement]:
    """Every engine in every round, each round beginning with another one."""
    engines: list[str] = arguments.engines
    for round_ in range(arguments.rounds):
        turn = round_ % len(engines)
        for name in engines[turn:] + engines[:turn]:
            start = time.monotonic()
            yield from run_once(name, arguments.dir, arguments.workloads, round_, arguments.threads)
            print(f"round {round_ + 1}: {name} took {time.monotonic() - start:.0f} s", file=sys.stderr)


@dataclass(frozen=True)
class Rate:
    """Tokens a second of one engine on one workload over the rounds."""

    median: float
    spread: float
    """Largest over smallest."""


def rate_of(measurements: Sequence[Measurement]) -> Rate:
    """Of one engine and workload."""
    counts = [m.total_tokens if m.workload in PROMPT_AND_OUTPUT else m.output_tokens for m in measurements]
    rates = [count / m.seconds for count, m in zip(counts, measurements, strict=True)]
    return Rate(statistics.median(rates), max(rates) / min(rates))


def collect_rates(measurements: Sequence[Measurement]) -> dict[tuple[str, str], Rate]:
    """(engine, workload) to its rate."""
    keys = dict.fromkeys((m.engine, m.workload) for m in measurements)
    return {key: rate_of([m for m in measurements if (m.engine, m.workload) == key]) for key in keys}


def make_table(rates: Mapping[tuple[str, str], Rate], engines: Sequence[str], workloads: Sequence[str]) -> str:
    """Tokens a second (spread), and how many times the first engine's rate is each of the others'."""
    first, *others = engines
    heads = ["workload", first, *(head for other in others for head in (other, f"{first} / {other}"))]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for workload in workloads:
        mine = rates[first, workload]
        cells = [workload, f"{mine.median:,.1f} ({mine.spread:.2f})"]
        for other in others:
            peer = rates[other, workload]
            cells += [f"{peer.median:,.1f} ({peer.spread:.2f})", f"**{mine.median / peer.median:.2f}**"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def find_misses(rates: Mapping[tuple[str, str], Rate], arguments: argparse.Namespace) -> list[str]:
    """Bars that the first engine does not reach."""
    first = arguments.engines[0]
    misses = []
    for peer, bar in arguments.at_least:
        for workload in arguments.workloads:
            ratio = rates[first, workload].median / rates[peer, workload].median
            if ratio < bar:
                misses.append(f"{workload}: {ratio:.2f} x {peer}, the bar is {bar}")
    return misses


def parse_bar(text: str) -> tuple[str, float]:
    """ENGINE=RATIO."""
    engine, _, ratio = text.partition("=")
    return engine, float(ratio)


def parse_arguments() -> argparse.Namespace:
    """The command line; names are checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--engines", default="headway,transformers", help="the first is compared with the others")
    parser.add_argument("--workloads", default="eight-128,sixty-four-128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--at-least", type=parse_bar, action="append", default=[], metavar="ENGINE=RATIO")
    parser.add_argument("--out", type=Path, help="a file for the single measurements, as JSON lines")
    arguments = parser.parse_args()
    arguments.engines = arguments.engines.split(",")
    arguments.workloads = arguments.workloads.split(",")
    unknown = [name for name in arguments.engines if name not in ENGINES]
    unknown += [name for name in arguments.workloads if name not in WORKLOADS]
    unknown += [name for name, _ in arguments.at_least if name not in arguments.engines]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; engines: {', '.join(ENGINES)}; workloads: {', '.join(WORKLOADS)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    print(describe_machine(), flush=True)
    try:
        measurements = list(run_rounds(arguments))
    except EngineFailed as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text("".join(json.dumps(asdict(m)) + "\n" for m in measurements))
    rates = collect_rates(measurements)
    print(f"\nTokens a second, median of {arguments.rounds} (largest / smallest), {arguments.threads} threads\n")
    print(make_table(rates, arguments.engines, arguments.workloads))
    misses = find_misses(rates, arguments)
    for miss in misses:
        print(f"BELOW THE BAR: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
