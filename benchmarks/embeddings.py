"""Embeddings a second of all-MiniLM-L6-v2 against onnxruntime and sentence-transformers: the same texts, in turns.

    embeddings.py --dir DIR [--rounds 5] [--threads N] [--at-least 1.0]

64 texts of 16 to 256 tokens, evenly spread and shuffled. DIR is laid out by `prepare.sh DIR encoders`. Each engine is a
process of its own that has loaded and warmed up; in each round each takes its turn, timed inside its process from texts
to vectors. onnxruntime gets sentence-transformers' own batches: sorted by length, 32 at a time, padded to the longest.
Vectors are compared first. Medians of the rounds' ratios are printed (goal 1.5); exit status 1 below --at-least.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

from machine import describe_machine, usable_cores

ENGINES = ("headway", "onnxruntime", "sentence-transformers")
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend"
)
CLOSE = 1e-3
MAX_TOKENS = 256


def make_texts(num_texts: int = 64) -> list[str]:
    """Texts of 16 to 256 tokens: each word is one, and two stand around them."""
    rng = random.Random(0)
    sizes = [16 + (MAX_TOKENS - 16) * place // (num_texts - 1) for place in range(num_texts)]
    rng.shuffle(sizes)
    return [" ".join(rng.choices(WORDS.split(), k=size - 2)) for size in sizes]


class Engine:
    """A peer's process: a line in (run), a line out (seconds)."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self.name = name
        python = sys.executable if name == "headway" else str(folder / "venv" / "encoders" / "bin" / "python")
        script = str(Path(__file__).parent / "peers" / "run_encoder.py")
        model = str(folder / "models" / "all-minilm-l6-v2")
        self._process = subprocess.Popen(
            [python, script, name, model, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask({"texts": make_texts()})

    def vectors(self) -> list[list[float]]:
        """Of all texts."""
        return self._ask({"do": "vectors"})  # type: ignore[return-value]

    def run(self) -> float:
        """Seconds of one turn."""
        return float(self._ask({"do": "time"}))  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends it."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def _ask(self, what: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}")
        return json.loads(line)


def largest_difference(engines: list[Engine]) -> float:
    """Of any number of any vector between the first engine and the others."""
    ours, *others = (engine.vectors() for engine in engines)
    pairs = (zip(a, b, strict=True) for other in others for a, b in zip(ours, other, strict=True))
    return max(abs(x - y) for pair in pairs for x, y in pair)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--at-least", type=float, default=1.0)
    options = parser.parse_args()
    print(describe_machine())
    engines = [Engine(name, options.dir, options.threads) for name in ENGINES]
    difference = largest_difference(engines)
    print(f"largest difference of a number of a vector: {difference:.1e} (at most {CLOSE:g})")
    times: dict[str, list[float]] = {name: [] for name in ENGINES}
    for _ in range(options.rounds):
        for engine in engines:
            times[engine.name].append(engine.run())
    for engine in engines:
        engine.close()
    return report(times, difference, options.at_least)


def report(times: dict[str, list[float]], difference: float, at_least: float) -> int:
    """The table; the exit status."""
    print("| engine | texts a second | headway's ratio (rounds) |\n|---|---|---|")
    is_good = difference <= CLOSE
    for name, seconds in times.items():
        ratios = [theirs / ours for ours, theirs in zip(times["headway"], seconds, strict=True)]
        ratio = statistics.median(ratios)
        is_good = is_good and (name == "headway" or ratio >= at_least)
        spread = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {64 / statistics.median(seconds):.1f} | {'' if name == 'headway' else spread} |")
    print(f"bar: at least {at_least:g} of each; goal 1.5: {'holds' if is_good else 'MISSED'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
