"""Runs engines in turn, several rounds; prints medians, and Headway's ratio to each peer against its floor and goal.

    compare.py --dir DIR [--model smollm2-135m] [--contests openvino,vllm] [--workloads ...] [--rounds 3]
               [--roofline FILE] [--peers-only] [--out FILE]

DIR is what prepare.sh laid out. Each round starts each engine once, in its own process, on that round's prompts; the
order of the engines turns from round to round. Compare only within one run, on a machine that is otherwise idle, and
quote the ratios, not the absolute figures. With --roofline (roofline.py's output) the share of the machine's bound is
printed too, and on a model of random weights 75% of the bound is enough where that asks less than the ratio. The exit
status is 1 below a floor, 2 where an engine failed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bars import CONTESTS, Bar, Contest, rate_of
from engines import ENGINES, MODELS, EngineFailed, Run, run_once
from machine import describe_machine, usable_cores
from workloads import WORKLOADS, Measurement

SHARE_OF_ROOFLINE = 0.75


@dataclass(frozen=True)
class Rate:
    """Tokens a second of one engine on one workload over the rounds."""

    median: float
    spread: float
    """Largest over smallest."""


Rates = Mapping[tuple[str, str], Rate]
"""By engine and workload."""
Bounds = Mapping[str, Mapping[str, float]]
"""By form (q4, q8, bf16) and workload: tokens a second that the machine can do."""


def run_rounds(engines: Sequence[str], run: Run, rounds: int) -> Iterator[Measurement]:
    """Every engine in every round, each round beginning with another one."""
    for round_ in range(rounds):
        turn = round_ % len(engines)
        for name in [*engines[turn:], *engines[:turn]]:
            start = time.monotonic()
            yield from run_once(name, run, round_)
            print(f"round {round_ + 1}: {name} took {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def collect_rates(measurements: Sequence[Measurement]) -> Rates:
    """Medians over the rounds."""
    rates: dict[tuple[str, str], list[float]] = {}
    for measurement in measurements:
        rates.setdefault((measurement.engine, measurement.workload), []).append(rate_of(measurement))
    return {key: Rate(statistics.median(values), max(values) / min(values)) for key, values in rates.items()}


def make_rate_table(rates: Rates, engines: Sequence[str], workloads: Sequence[str]) -> str:
    """Tokens a second (spread), an engine a line."""
    lines = [f"| tokens/s | {' | '.join(workloads)} |", "|---" * (len(workloads) + 1) + "|"]
    for engine in engines:
        cells = [f"{rates[engine, w].median:,.1f} ({rates[engine, w].spread:.2f})" for w in workloads]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """One workload of a contest."""

    workload: str
    ours: float
    peer: str
    ratio: float
    bar: Bar
    bound: float | None
    """Tokens a second of the roofline."""
    may_be_share: bool
    """A share of the roofline is enough."""

    @property
    def share(self) -> float | None:
        """Of the roofline, that ours reached."""
        return self.ours / self.bound if self.bound else None

    @property
    def holds(self) -> bool:
        """The ratio, or the share of the roofline where that is enough and asks less."""
        return self.ratio >= self.bar.floor or (self.may_be_share and (self.share or 0.0) >= SHARE_OF_ROOFLINE)

    def as_row(self) -> str:
        """A line of the table."""
        goal = f"{self.bar.goal:g}" if self.bar.goal else "-"
        share = f"{self.share:.0%}" if self.share else "-"
        state = "goal" if self.bar.goal and self.ratio >= self.bar.goal else "holds" if self.holds else "**BELOW**"
        cells = (self.workload, self.peer, f"**{self.ratio:.2f}**", f"{self.bar.floor:g}", goal, share, state)
        return f"| {' | '.join(cells)} |"


def judge(
    contest: Contest, rates: Rates, workloads: Sequence[str], bounds: Bounds, *, may_be_share: bool
) -> list[Verdict]:
    """Every workload of the contest that was run, against the best of the peer's configurations."""
    verdicts = []
    for workload in workloads:
        if workload in contest.bars:
            best = max(contest.peers, key=lambda peer: rates[peer, workload].median)
            ours = rates[contest.ours, workload].median
            bound = bounds.get(ENGINES[contest.ours].form, {}).get(workload)
            ratio = ours / rates[best, workload].median
            verdicts.append(Verdict(workload, ours, best, ratio, contest.bars[workload], bound, may_be_share))
    return verdicts


def print_verdicts(name: str, contest: Contest, verdicts: Sequence[Verdict]) -> None:
    """As a Markdown table."""
    print(f"\n{contest.ours} against {name}\n")
    print("| workload | peer | ratio | floor | goal | share of roofline | |\n" + "|---" * 7 + "|")
    for verdict in verdicts:
        print(verdict.as_row())


def engines_of(contests: Sequence[Contest], *, peers_only: bool) -> list[str]:
    """Each once, in order."""
    names = [name for c in contests for name in ([] if peers_only else [c.ours]) + list(c.peers)]
    return list(dict.fromkeys(names))


def parse_arguments() -> argparse.Namespace:
    """The command line; names are checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--model", choices=list(MODELS), default="smollm2-135m")
    parser.add_argument("--contests", default="openvino", help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--roofline", type=Path, help="roofline.py's --out")
    parser.add_argument("--peers-only", action="store_true", help="without Headway")
    parser.add_argument("--out", type=Path, help="a file for the single measurements, as JSON lines")
    arguments = parser.parse_args()
    arguments.contests = arguments.contests.split(",")
    arguments.workloads = arguments.workloads.split(",")
    unknown = [name for name in arguments.contests if name not in CONTESTS]
    unknown += [name for name in arguments.workloads if name not in WORKLOADS]
    if unknown:
        known = f"contests: {', '.join(CONTESTS)}; workloads: {', '.join(WORKLOADS)}"
        parser.error(f"unknown: {', '.join(unknown)}; {known}")
    return arguments


def measure(arguments: argparse.Namespace, engines: Sequence[str]) -> list[Measurement]:
    """All rounds; also appended to --out as they come. Raises EngineFailed."""
    run = Run(arguments.dir, MODELS[arguments.model], arguments.workloads, arguments.threads)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text("")
    measurements = []
    for measurement in run_rounds(engines, run, arguments.rounds):
        measurements.append(measurement)
        if arguments.out:
            with arguments.out.open("a") as file:
                file.write(json.dumps(asdict(measurement)) + "\n")
    return measurements


def main() -> int:
    arguments = parse_arguments()
    contests = {name: CONTESTS[name] for name in arguments.contests}
    engines = engines_of(list(contests.values()), peers_only=arguments.peers_only)
    bounds: Bounds = json.loads(arguments.roofline.read_text())[arguments.model] if arguments.roofline else {}
    print(describe_machine(), flush=True)
    try:
        rates = collect_rates(measure(arguments, engines))
    except EngineFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{arguments.model}: median of {arguments.rounds} (largest / smallest), {arguments.threads} threads\n")
    print(make_rate_table(rates, engines, arguments.workloads))
    if arguments.peers_only:
        return 0
    all_hold = True
    for name, contest in contests.items():
        verdicts = judge(contest, rates, arguments.workloads, bounds, may_be_share=MODELS[arguments.model].is_random)
        print_verdicts(name, contest, verdicts)
        all_hold = all_hold and all(verdict.holds for verdict in verdicts)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
