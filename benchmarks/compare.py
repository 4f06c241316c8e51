"""Runs engines in turn, several rounds; prints medians, and Headway's ratio to each peer against its floor and goal.

    compare.py --dir DIR [--models smollm2-135m,...] [--contests openvino,vllm] [--workloads ...] [--rounds 3]
               [--results FILE] [--minutes N] [--show] [--roofline FILE] [--each-workload] [--peers-only]
               [--without ENGINE,...]

DIR is what prepare.sh laid out. Each round starts each engine once, in its own process, on that round's prompts; the
order of the engines turns from round to round. An engine runs the workloads that its contests have bars for. Compare
only within one run, on a machine that is otherwise idle, and quote the ratios, not the absolute figures.

With --results each measurement is saved as it is made: the same command goes on where another broke off, was
interrupted or reached --minutes, and begins anew where nothing was left to do. --show prints the tables of what is
there. --each-workload lets the engines take turns workload by workload: nearer in time, for one more start each.
--without leaves configurations of peers out, those that are known not to be the best.

With --roofline (roofline.py's output) the share of the machine's bound is printed too, and on a model of random weights
75% of the bound is enough where that asks less than the ratio. The exit status is 1 below a floor or where an engine
made another number of tokens than it had to, 2 where an engine failed, 3 where something is left to be measured.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bars import CONTESTS, Contest
from engines import ENGINES, MODELS, EngineFailed, Run, run_once
from machine import describe_machine, usable_cores
from results import Results
from verdicts import Bounds, collect_rates, judge, make_rate_table, make_verdict_table
from workloads import WORKLOADS, Measurement

RunOnce = Callable[[str, Run, int], Iterator[Measurement]]
FINE, BELOW, FAILED, UNFINISHED = range(4)
"""Exit statuses."""


@dataclass(frozen=True)
class Turn:
    """One start of one engine."""

    model: str
    engine: str
    round: int
    workloads: Sequence[str]


def choose_contests(names: Sequence[str], without: Sequence[str]) -> dict[str, Contest]:
    """By name. Raises SystemExit where a peer is left without a configuration."""
    contests = {}
    for name in names:
        peers = [peer for peer in CONTESTS[name].peers if peer not in without]
        if not peers:
            raise SystemExit(f"--without {','.join(without)} leaves nothing of {name}: leave it out of --contests")
        contests[name] = replace(CONTESTS[name], peers=peers)
    return contests


def workloads_of(engine: str, contests: Sequence[Contest], workloads: Sequence[str]) -> list[str]:
    """Those that a contest of this engine has a bar for."""
    bars = [contest.bars for contest in contests if engine in (contest.ours, *contest.peers)]
    return [workload for workload in workloads if any(workload in each for each in bars)]


def engines_of(contests: Sequence[Contest], *, peers_only: bool = False) -> list[str]:
    """Each once, in order."""
    names = [name for c in contests for name in ([] if peers_only else [c.ours]) + list(c.peers)]
    return list(dict.fromkeys(names))


def plan_turns(arguments: argparse.Namespace, contests: Sequence[Contest]) -> Iterator[Turn]:
    """Every engine in every round of every model, each round beginning with another engine."""
    engines = engines_of(contests, peers_only=arguments.peers_only)
    groups = [[workload] for workload in arguments.workloads] if arguments.each_workload else [arguments.workloads]
    for model in arguments.models:
        for round_ in range(arguments.rounds):
            first = round_ % len(engines)
            for group in groups:
                for engine in [*engines[first:], *engines[:first]]:
                    if workloads := workloads_of(engine, contests, group):
                        yield Turn(model, engine, round_, workloads)


def left_of(turn: Turn, results: Results) -> Turn | None:
    """Without what was measured; None: nothing is left."""
    left = [w for w in turn.workloads if not results.has((turn.model, turn.engine, w, turn.round))]
    return Turn(turn.model, turn.engine, turn.round, left) if left else None


def measure(arguments: argparse.Namespace, turns: Sequence[Turn], results: Results, run: RunOnce = run_once) -> None:
    """What is left of the turns, no engine being started after --minutes. Raises EngineFailed."""
    began = time.monotonic()
    for turn in turns:
        left = left_of(turn, results)
        if left is None:
            continue
        start = time.monotonic()
        if arguments.minutes is not None and start - began >= arguments.minutes * 60:
            return
        what = Run(arguments.dir, MODELS[turn.model], left.workloads, arguments.threads)
        for measurement in run(turn.engine, what, turn.round):
            results.add(turn.model, measurement)
        took = time.monotonic() - start
        print(f"{turn.model}, round {turn.round + 1}: {turn.engine} took {took:.0f} s", file=sys.stderr, flush=True)


def print_tables(arguments: argparse.Namespace, contests: Mapping[str, Contest], results: Results) -> bool:
    """Of every model. Whether every bar holds that something was measured for."""
    engines = engines_of(list(contests.values()), peers_only=arguments.peers_only)
    bounds: Mapping[str, Bounds] = json.loads(arguments.roofline.read_text()) if arguments.roofline else {}
    all_hold = True
    for model in arguments.models:
        rates = collect_rates(results.of(model, arguments.rounds))
        print(f"\n{model}: median of {arguments.rounds} (largest / smallest), {arguments.threads} threads\n")
        print(make_rate_table(rates, engines, arguments.workloads, arguments.rounds))
        for name, contest in {} if arguments.peers_only else contests.items():
            is_random = MODELS[model].is_random
            verdicts = judge(contest, rates, arguments.workloads, bounds.get(model, {}), may_be_share=is_random)
            print("\n" + make_verdict_table(name, contest, verdicts))
            all_hold = all_hold and all(verdict.holds for verdict in verdicts)
    return all_hold


def names_of(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """Reads names with commas between them; for argparse."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return read


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; names are checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--models", type=names_of(MODELS), default=["smollm2-135m"], help=f"of {', '.join(MODELS)}")
    parser.add_argument("--contests", type=names_of(CONTESTS), default=["openvino"], help=f"of {', '.join(CONTESTS)}")
    parser.add_argument("--workloads", type=names_of(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", type=names_of(ENGINES), default=[], help="configurations of peers")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--results", type=Path, help="a file of JSON lines to save to and to go on with")
    parser.add_argument("--minutes", type=float, help="start no engine after so many")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--each-workload", action="store_true", help="take turns workload by workload")
    parser.add_argument("--roofline", type=Path, help="roofline.py's --out")
    parser.add_argument("--peers-only", action="store_true", help="without Headway")
    return parser.parse_args(words)


def open_results(arguments: argparse.Namespace, turns: Sequence[Turn], engines: Sequence[str]) -> Results:
    """With what was saved, unless that is all there is to measure. Raises ValueError for a file that is none."""
    results = Results(arguments.results, engines, arguments.threads)
    num_left = sum(left_of(turn, results) is not None for turn in turns)
    if arguments.show:
        return results
    if num_left == 0:
        results.begin_anew()
    elif num_left < len(turns):
        print(f"Going on with {arguments.results}: {len(turns) - num_left} of {len(turns)} starts are done.")
    if results.num_foreign:
        print(f"{results.num_foreign} measurements of other code, threads or another machine are not counted.")
    return results


def main() -> int:
    arguments = parse_arguments()
    contests = choose_contests(arguments.contests, arguments.without)
    turns = list(plan_turns(arguments, list(contests.values())))
    print(describe_machine(), flush=True)
    results = open_results(arguments, turns, engines_of(list(contests.values())))
    status = FINE
    if not arguments.show:
        try:
            measure(arguments, turns, results)
        except EngineFailed as error:
            print(error, file=sys.stderr)
            status = FAILED
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
    all_hold = print_tables(arguments, contests, results)
    num_left = sum(left_of(turn, results) is not None for turn in turns)
    if num_left:
        print(f"\n{num_left} of {len(turns)} starts of engines are left: the same command with --results goes on.")
    return status or (BELOW if not all_hold else UNFINISHED if num_left else FINE)


if __name__ == "__main__":
    sys.exit(main())
