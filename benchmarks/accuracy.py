"""How far each way of computing is from float32 on the dequantised weights, on English documentation.

    accuracy.py --dir DIR [--windows 8] [--forms bf16,q4,q8] [--extra] [--without-llamacpp]

Without --extra the ways that have a bar, in about six minutes of two cores; with it other caches and --quantization,
too. Text: the topics of Python's own documentation (pydoc_data.topics of the Python that runs this), in windows of 512
tokens. Reference: the torch executor in float32. Printed are the mean KL divergence of the next token's distribution in
millinats, and the perplexity against the reference's. The exit status is 1 where native bf16 is further than torch's
bf16, native on a quantised file further than llama.cpp on the same file, or a perplexity more than
1% off; the standard error beside a difference says how much of it may be chance, and excuses nothing.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt
import torch
from engines import HERE, MODELS
from machine import describe_machine, usable_cores

from headway.cache.kv_store import KVStore
from headway.checkpoint.checkpoint import open_checkpoint
from headway.config import EngineConfig
from headway.executor.base import Executor, StepArrays
from headway.executor.factory import make_executor
from headway.model.registry import make_program
from headway.text.tokenizer import make_tokenizer

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
WINDOW, BLOCK_SIZE, ROWS_AT_ONCE = 512, 16, 64
PERPLEXITY_LIMIT = 0.01
MODEL = MODELS["smollm2-135m"]


@dataclass(frozen=True)
class Way:
    """One way of computing a file."""

    name: str
    executor: str
    """native, torch or llamacpp."""
    dtype: str = "auto"
    kv_dtype: str = "float16"
    quantization: str | None = None
    is_ours: bool = False
    """Judged against the case's other one."""
    is_extra: bool = False
    """Only measured when it is asked for."""


@dataclass(frozen=True)
class Case:
    """A file, and the ways that are compared on it; `rival` is the name of what ours must not be worse than."""

    form: str
    ways: Sequence[Way]
    rival: str


CASES = (
    Case(
        "bf16",
        (
            Way("native bf16", "native", "bfloat16", is_ours=True),
            Way("torch bf16", "torch", "bfloat16", "bfloat16"),
            Way("native bf16, bfloat16 cache", "native", "bfloat16", "bfloat16", is_extra=True),
            Way("native bf16, int8 cache", "native", "bfloat16", "int8", is_extra=True),
            Way("native --quantization int8", "native", "bfloat16", quantization="int8", is_extra=True),
            Way("native --quantization int4", "native", "bfloat16", quantization="int4", is_extra=True),
        ),
        "torch bf16",
    ),
    *(
        Case(
            form,
            (
                Way(f"native {name}", "native", is_ours=True),
                Way(f"native {name}, bfloat16 cache", "native", kv_dtype="bfloat16", is_extra=True),
                Way(f"native {name}, int8 cache", "native", kv_dtype="int8", is_extra=True),
                Way(f"llama.cpp {name}", "llamacpp"),
                Way(f"llama.cpp {name}, bfloat16 cache", "llamacpp", kv_dtype="bfloat16", is_extra=True),
            ),
            f"llama.cpp {name}",
        )
        for form, name in (("q4", "Q4_1"), ("q8", "Q8_0"))
    ),
)


@dataclass(frozen=True)
class Distance:
    """From the reference."""

    by_window: Float64
    """Mean KL divergence of each window, in millinats."""
    perplexity: float
    reference_perplexity: float

    @property
    def millinats(self) -> float:
        """Mean KL divergence."""
        return float(self.by_window.mean())

    @property
    def excess(self) -> float:
        """How much the perplexity is over the reference's, as a share of it."""
        return self.perplexity / self.reference_perplexity - 1


def make_windows(path: Path, count: int) -> Int32:
    """[count, WINDOW] tokens of the documentation. Raises SystemExit where there is not so much text."""
    tokenizer = make_tokenizer(open_checkpoint(path).text)
    ids: list[int] = []
    for topic in sorted(topics):
        if len(ids) >= count * WINDOW:
            break
        ids += tokenizer.encode(topics[topic])
    if len(ids) < count * WINDOW:
        raise SystemExit(f"the documentation has {len(ids)} tokens, {count * WINDOW} are wanted")
    return np.array(ids[: count * WINDOW], np.int32).reshape(count, WINDOW)


def make_step(tokens: Int32) -> StepArrays:
    """One prompt, all of whose logits are wanted."""
    n = len(tokens)
    at = np.arange(n, dtype=np.int32)
    return StepArrays(
        token_ids=tokens,
        positions=at,
        query_starts=np.array([0, n], np.int32),
        context_lens=np.array([n], np.int32),
        block_tables=np.arange(-(-n // BLOCK_SIZE), dtype=np.int32)[None],
        slots=at.astype(np.int64),
        logit_rows=at,
    )


def load(path: Path, way: Way, threads: int) -> Executor:
    """The executor of a way of ours. Raises what loading raises."""
    checkpoint = open_checkpoint(path)
    program = make_program(checkpoint.shape)
    config = EngineConfig(
        executor=way.executor,  # type: ignore[arg-type]
        dtype=way.dtype,  # type: ignore[arg-type]
        quantization=way.quantization,  # type: ignore[arg-type]
        threads=threads,
        max_model_len=WINDOW,
        max_num_batched_tokens=WINDOW,
        max_num_seqs=WINDOW,
    )
    kv = KVStore(program.caches, num_blocks=WINDOW // BLOCK_SIZE, block_size=BLOCK_SIZE, dtype=way.kv_dtype)
    return make_executor(program, checkpoint.weights, kv, config)


def logits_of(path: Path, way: Way, windows: Int32, arguments: argparse.Namespace) -> Iterator[Float32]:
    """[WINDOW, vocab] of each window in turn; each is good until the next is asked for."""
    if way.executor != "llamacpp":
        executor = load(path, way, arguments.threads)
        for window in windows:
            yield executor.execute(make_step(window))
        return
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = Path(folder) / "tokens.npy", Path(folder) / "logits.npy"
        np.save(tokens, windows)
        python = str(arguments.dir / "venv" / "llamacpp" / "bin" / "python")
        command = [python, str(HERE / "peers" / "logits_llamacpp.py"), str(path), str(tokens), str(out)]
        subprocess.run([*command, "--threads", str(arguments.threads), "--cache", way.kv_dtype], check=True)
        yield from np.load(out, mmap_mode="r")


def log_softmax(logits: Float32) -> torch.Tensor:
    """[rows, vocab] in float64, on all threads: these are most of what a way costs beside its model."""
    return torch.tensor(logits, dtype=torch.float64).log_softmax(1)


def surprise(log_p: torch.Tensor, following: Int32) -> float:
    """Summed over the rows that something follows, in nats."""
    ids = torch.tensor(following, dtype=torch.int64)
    return -float(log_p[: len(ids)].gather(1, ids[:, None]).sum())


def compare_window(reference: Float32, logits: Float32, window: Int32) -> Float64:
    """Sums over a window: divergence, our surprise, the reference's. In nats."""
    sums = np.zeros(3)
    for start in range(0, len(window), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        log_p, log_q = log_softmax(reference[rows]), log_softmax(logits[rows])
        following = window[start + 1 : start + ROWS_AT_ONCE + 1]
        divergence = float((log_p.exp() * (log_p - log_q)).sum())
        sums += [divergence, surprise(log_q, following), surprise(log_p, following)]
    return sums


def measure(
    path: Path, references: Sequence[Float32], way: Way, windows: Int32, arguments: argparse.Namespace
) -> Distance:
    """One way against the references, a window each."""
    found = zip(references, logits_of(path, way, windows, arguments), windows, strict=True)
    sums = np.stack([compare_window(reference, logits, window) for reference, logits, window in found])
    num_followed = windows.size - len(windows)
    perplexity, right = np.exp(sums[:, 1:].sum(0) / num_followed)
    return Distance(sums[:, 0] / WINDOW * 1e3, float(perplexity), float(right))


def compare_distances(ours: Distance, rival: Distance) -> tuple[float, float]:
    """How much further ours is, and the standard error of that: two ways to round are two samples of one error."""
    more = ours.by_window - rival.by_window
    return float(more.mean()), float(more.std(ddof=1) / len(more) ** 0.5) if len(more) > 1 else 0.0


def judge(case: Case, distances: Mapping[str, Distance]) -> list[str]:
    """What of ours misses its bar; prints by how much it is off."""
    misses = []
    for way in case.ways:
        if not way.is_ours:
            continue
        ours, rival = distances[way.name], distances.get(case.rival)
        if rival is not None:
            more, chance = compare_distances(ours, rival)
            print(f"{way.name} against {case.rival}: {more:+.3f} millinats, standard error {chance:.3f}")
            if more > 0:
                both = f"{ours.millinats:.3f} millinats, {case.rival} {rival.millinats:.3f}"
                misses.append(f"{way.name}: {both} (standard error of the difference {chance:.3f})")
        if abs(ours.excess) > PERPLEXITY_LIMIT:
            misses.append(f"{way.name}: perplexity {ours.excess:+.2%}, at most {PERPLEXITY_LIMIT:.0%}")
    return misses


def run_case(case: Case, windows: Int32, arguments: argparse.Namespace) -> list[str]:
    """Prints a line a way; what misses its bar."""
    path = arguments.dir / "models" / getattr(MODEL, case.form)
    float32 = Way("float32", "torch", "float32", "float32")
    references = [logits.copy() for logits in logits_of(path, float32, windows, arguments)]
    distances = {}
    print(f"\n| {path.name} | mean KL, millinats | perplexity | of float32 | off |\n" + "|---" * 5 + "|")
    for way in case.ways:
        if (way.executor == "llamacpp" and arguments.without_llamacpp) or (way.is_extra and not arguments.extra):
            continue
        distance = distances[way.name] = measure(path, references, way, windows, arguments)
        perplexities = f"{distance.perplexity:.3f} | {distance.reference_perplexity:.3f} | {distance.excess:+.2%}"
        print(f"| {way.name} | {distance.millinats:.3f} | {perplexities} |", flush=True)
    print()
    return judge(case, distances)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--forms", default=",".join(case.form for case in CASES), help="of the model, with commas")
    parser.add_argument("--extra", action="store_true", help="other caches and --quantization, too")
    parser.add_argument("--without-llamacpp", action="store_true")
    arguments = parser.parse_args()
    forms = arguments.forms.split(",")
    if unknown := set(forms) - {case.form for case in CASES}:
        parser.error(f"--forms has {', '.join(sorted(unknown))}; there are {', '.join(case.form for case in CASES)}")
    torch.set_num_threads(arguments.threads)
    print(describe_machine() + "\n", flush=True)
    windows = make_windows(arguments.dir / "models" / MODEL.q4, arguments.windows)
    print(f"{windows.size:,} tokens of pydoc_data.topics in windows of {WINDOW}")
    misses = [miss for case in CASES if case.form in forms for miss in run_case(case, windows, arguments)]
    for miss in misses:
        print(f"BELOW THE BAR: {miss}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
