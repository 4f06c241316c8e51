"""From measurements to tables: medians over the rounds, ratios to a peer against floor and goal, share of the bound."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bars import Bar, Contest, rate_of
from engines import ENGINES
from workloads import Measurement

SHARE_OF_ROOFLINE = 0.75
"""Enough on a model of random weights, where it asks less than the ratio."""

Bounds = Mapping[str, Mapping[str, float]]
"""By form (q4, q8, bf16) and workload: tokens a second that the machine can do."""


@dataclass(frozen=True)
class Rate:
    """Tokens a second of one engine on one workload, round by round."""

    by_round: Mapping[int, float]
    fault: str | None
    """What is wrong with the number of tokens that it made, in the worst round."""

    def median(self, rounds: Iterable[int] | None = None) -> float:
        """Of these rounds, all of which were measured; None: of all."""
        return statistics.median(self.by_round[r] for r in (self.by_round if rounds is None else rounds))

    def as_cell(self, num_rounds: int) -> str:
        """The median, largest over smallest, and how many rounds if not all."""
        notes = [f"{max(self.by_round.values()) / min(self.by_round.values()):.2f}"] if len(self.by_round) > 1 else []
        notes += [f"{len(self.by_round)} of {num_rounds}"] if len(self.by_round) != num_rounds else []
        notes += [self.fault] if self.fault else []
        return f"{self.median():,.1f}" + (f" ({', '.join(notes)})" if notes else "")


Rates = Mapping[tuple[str, str], Rate]
"""By engine and workload; what was not measured is not in it."""


def collect_rates(measurements: Iterable[Measurement]) -> Rates:
    """Of one model."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault((measurement.engine, measurement.workload), []).append(measurement)
    return {key: Rate({m.round: rate_of(m) for m in group}, _fault_of(group)) for key, group in groups.items()}


def _fault_of(measurements: Sequence[Measurement]) -> str | None:
    worst = max(measurements, key=lambda m: abs(m.output_tokens - m.wanted_tokens))
    if worst.output_tokens == worst.wanted_tokens:
        return None
    return f"made {worst.output_tokens:,} tokens of {worst.wanted_tokens:,}"


def make_rate_table(rates: Rates, engines: Sequence[str], workloads: Sequence[str], num_rounds: int) -> str:
    """An engine a line."""
    lines = [f"| tokens/s | {' | '.join(workloads)} |", "|---" * (len(workloads) + 1) + "|"]
    for engine in engines:
        found = [rates.get((engine, workload)) for workload in workloads]
        lines.append(f"| {engine} | {' | '.join(rate.as_cell(num_rounds) if rate else '-' for rate in found)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """One workload of a contest."""

    workload: str
    bar: Bar
    peer: str
    ratio: float
    """Of medians of the rounds that both engines have."""
    num_rounds: int
    share: float | None
    """Of the roofline, that ours reached."""
    may_be_share: bool
    """A share of the roofline is enough."""
    fault: str | None
    """An engine made another number of tokens than it had to: the ratio says nothing."""

    @property
    def holds(self) -> bool:
        """The ratio, or the share of the roofline where that is enough."""
        is_enough = self.may_be_share and (self.share or 0.0) >= SHARE_OF_ROOFLINE
        return not self.fault and (self.ratio >= self.bar.floor or is_enough)

    @property
    def state(self) -> str:
        """In a word, or what is wrong."""
        if self.fault:
            return f"**{self.fault}**"
        if self.bar.goal and self.ratio >= self.bar.goal:
            return "goal"
        return "holds" if self.holds else "**BELOW**"

    def as_row(self) -> str:
        """A line of the table."""
        goal = f"{self.bar.goal:g}" if self.bar.goal else "-"
        share = f"{self.share:.0%}" if self.share else "-"
        ratio = f"**{self.ratio:.2f}**"
        cells = (self.workload, self.peer, ratio, f"{self.bar.floor:g}", goal, share, str(self.num_rounds), self.state)
        return f"| {' | '.join(cells)} |"


def judge(
    contest: Contest, rates: Rates, workloads: Sequence[str], bounds: Bounds, *, may_be_share: bool
) -> list[Verdict]:
    """Every workload of the contest that was measured, against the configuration of the peer that is best there."""
    verdicts = []
    for workload in workloads:
        ours = rates.get((contest.ours, workload))
        if ours is None or workload not in contest.bars:
            continue
        bound = bounds.get(ENGINES[contest.ours].form, {}).get(workload)
        against = []
        for peer in contest.peers:
            theirs = rates.get((peer, workload))
            if theirs and (rounds := ours.by_round.keys() & theirs.by_round.keys()):
                ratio, share = ours.median(rounds) / theirs.median(rounds), ours.median() / bound if bound else None
                faults = [f"{name} {r.fault}" for name, r in ((contest.ours, ours), (peer, theirs)) if r.fault]
                bar, fault = contest.bars[workload], ", ".join(faults) or None
                against.append(Verdict(workload, bar, peer, ratio, len(rounds), share, may_be_share, fault))
        if against:
            verdicts.append(min(against, key=lambda verdict: verdict.ratio))
    return verdicts


def make_verdict_table(name: str, contest: Contest, verdicts: Sequence[Verdict]) -> str:
    """In Markdown, with a heading."""
    columns = ("workload", "best peer", "ratio", "floor", "goal", "share of roofline", "rounds", "")
    heading = f"{contest.ours} against {name}\n\n| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|"
    return "\n".join([heading, *(verdict.as_row() for verdict in verdicts)])
