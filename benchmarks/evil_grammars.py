"""Eight running streams while every grammar that is made to hurt is sent, one after another: their gaps, its refusal.
The first one sent is the first constrained request of all, as a server's may be.

    evil_grammars.py [--first 0] [--count 30]    a part of them, at most two minutes

The grammars are those of tests/text/test_structured_limits.py, and those whose compiling or masks take ever longer.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from machine import describe_machine
from structured import Run, constraint_of

import headway_wire as wire
from headway.checkpoint.demo import fetch_demo
from headway.config import default_cache_dir
from headway.errors import InvalidRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NUM_STREAMS = 8
NUM_TOKENS = 60
"""Of each answer that is begun."""


def cases() -> list[tuple[str, Any]]:
    """Kinds and values. Those first that the ordinary ones do not stand for."""
    from text.test_structured_limits import CASES, rules

    own = [
        *(("grammar", _nested_terminals(num)) for num in (50, 150, 500)),
        ("grammar", 'start: s\ns: s s | s s s | "a" | ""'),
        ("grammar", 'start: s\ns: s s | s s s | /[a-z]/ | ""'),
        ("grammar", 'start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: "x" | "y"'),
        ("grammar", rules("r{i}: r{j} | r{j} r{j}", 300, 'r{i}: "x"')),
        ("json_schema", {"allOf": [{"type": "integer", "multipleOf": step} for step in (4999, 4993, 4987)]}),
    ]
    return [*own, *((kind, value) for kind, value, _ in CASES)]


def _nested_terminals(num: int) -> str:
    return f"start: ALL\nALL: {'ONE ' * num}\nONE: " + " ".join(['"a"?'] * 100)


class Streams:
    """A run whose eight plain streams never end, and the seconds between their tokens."""

    def __init__(self, model: Path) -> None:
        self.run = Run(model, max_num_seqs=NUM_STREAMS + 1)
        self._num_started = 0
        assert self.run.engine._grammars is not None
        self.run.engine._grammars._trials.submit(lambda: None).result()  # it is prepared, as a server's is
        for _ in range(20):
            self.step()

    def step(self) -> float:
        """Seconds of one step, with which each stream has a token."""
        self._open = [name for name in getattr(self, "_open", []) if name not in self.run.ends]
        while len(self._open) < NUM_STREAMS:
            self._num_started += 1
            self._open.append(f"stream {self._num_started}")
            self.run.submit(self._open[-1], None, max_tokens=1900, ignore_eos=True)
            self.run.step()
        begin = time.perf_counter()
        self.run.step()
        return time.perf_counter() - begin

    def send(self, name: str, kind: str, value: Any) -> tuple[str, float, list[float]]:
        """What became of a grammar, after how many seconds, and the gaps meanwhile."""
        begin = time.perf_counter()
        try:
            constraint = constraint_of(kind, value)
        except InvalidRequest as error:
            return f"400 before the engine: {error.message[:60]}", time.perf_counter() - begin, []
        self.run.submit(name, constraint, max_tokens=NUM_TOKENS, temperature=0.8, seed=1)
        gaps = []
        while name not in self.run.answers:
            gaps.append(self.step())
        answered_s, answer = time.perf_counter() - begin, self.run.answers[name]
        if isinstance(answer, wire.Refused):
            status = 503 if answer.error.kind == "QueueFull" else 400
            return f"{status}: {answer.error.message[:70]}", answered_s, gaps + [self.step() for _ in range(3)]
        while name not in self.run.ends:
            gaps.append(self.step())
        end = self.run.ends[name]
        words = end.finish_reason if end.error is None else f"ended: {end.error.message[:70]}"
        return f"{len(self.run.tokens[name])} tokens, {words}", answered_s, gaps


def describe(gaps: list[float]) -> str:
    """Their distribution in milliseconds."""
    cuts = statistics.quantiles(gaps, n=100)
    return f"p50 {cuts[49] * 1e3:.1f}, p99 {cuts[98] * 1e3:.1f}, max {max(gaps) * 1e3:.1f} ms of {len(gaps)}"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None, help="a model's file; else the demo model")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    arguments = parser.parse_args()
    print(describe_machine())
    sys.set_int_max_str_digits(0)  # of a schema that has one of 5,000, which is told below
    streams = Streams(arguments.model or fetch_demo(default_cache_dir()))
    quiet = [streams.step() for _ in range(300)]
    print("gaps without:", describe(quiet))
    found, latest = [], 0.0
    for number, (kind, value) in list(enumerate(cases()))[arguments.first : arguments.first + arguments.count]:
        words, seconds, gaps = streams.send(f"evil {number}", kind, value)
        found += gaps
        latest = max(latest, seconds)
        longest = max(gaps, default=0.0) * 1e3
        told = words.replace("\n", " ")
        print(f"{number} {kind} {str(value)[:36]!r}: {told}; answered after {seconds:.2f} s; longest gap {longest:.1f}")
    print("gaps without:", describe(quiet))
    print("gaps beside: ", describe(found))
    print(f"answered after {latest:.2f} s at most")
    streams.run.engine.close()


if __name__ == "__main__":
    main()
