"""What this machine can do at most on each workload, from its measured limits and the model's own counts.

    roofline.py --dir DIR [--threads 2] [--out FILE]

roofline_probe.cpp is compiled here and measures memory reads (over a buffer as large as the weights), integer products
in groups of 32, float32 and bfloat16 products. A step takes at least as long as the memory needs for the weights and
the cached keys and values that it reads, and as long as the products need: the larger of the two is its bound. Counts
come from the Program and from the tensors' types in the file. Embedding, norms, sampling and Python count as nothing,
so 100% cannot be reached.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bars import PREFILL
from engines import HERE, MODELS
from machine import describe_machine, usable_cores
from workloads import WORKLOADS, Workload

from headway.checkpoint.checkpoint import open_checkpoint
from headway.model.ops import Attention, Linear, SelectRows
from headway.model.registry import make_program

KV_ELEMENT_BYTES = 2
MAX_STEP_TOKENS = 2048
FORMS = ("q4", "q8", "bf16")


@dataclass(frozen=True)
class Counts:
    """Of one model in one form."""

    token_products: int
    """Multiplications by weights for each token of a step."""
    row_products: int
    """The same for each row whose logits are wanted."""
    weight_bytes: int
    """Of what every step reads: all but an embedding that is only looked up."""
    attention_products: int
    """Multiplications for each token and key that it sees, over all layers."""
    key_bytes: int
    """Of K and V of one cached token, over all layers."""


def count(path: Path) -> Counts:
    """Raises what open_checkpoint raises."""
    checkpoint = open_checkpoint(path)
    program = make_program(checkpoint.shape)
    after = next(i for i, op in enumerate(program.ops) if isinstance(op, SelectRows))
    products, size = {False: 0, True: 0}, 0
    for i, op in enumerate(program.ops):
        if isinstance(op, Linear):
            rows, columns = program.weights[op.weight]
            products[i > after] += rows * columns
            size += len(checkpoint.weights.raw(op.weight).data)
    attentions = [op for op in program.ops if isinstance(op, Attention)]
    seen = sum(op.num_heads * (op.qk_dim + op.v_dim) for op in attentions)
    keys = sum(cache.elements_per_token for cache in program.caches) * KV_ELEMENT_BYTES
    return Counts(products[False], products[True], size, seen, keys)


@dataclass(frozen=True)
class Limits:
    """Of the machine, on all threads."""

    bytes_per_s: float
    weight_ops_per_s: float
    """Multiplications and additions, in the form's own arithmetic."""
    float_ops_per_s: float


def step_seconds(counts: Counts, limits: Limits, tokens: int, rows: int, keys_seen: int, keys_read: int) -> float:
    """The bound of a step: `keys_seen` summed over its tokens, `keys_read` summed over its sequences."""
    memory = (counts.weight_bytes + counts.key_bytes * keys_read) / limits.bytes_per_s
    products = tokens * counts.token_products + rows * counts.row_products
    compute = 2 * products / limits.weight_ops_per_s
    compute += 2 * keys_seen * counts.attention_products / limits.float_ops_per_s
    return max(memory, compute)


def workload_seconds(workload: Workload, counts: Counts, limits: Limits) -> float:
    """All prompts in steps of MAX_STEP_TOKENS tokens, then a token a step for every request."""
    n, prompt = workload.num_requests, workload.prompt_tokens
    num_steps = -(-n * prompt // MAX_STEP_TOKENS)
    seen = n * prompt * (prompt + 1) // 2
    seconds = num_steps * step_seconds(
        counts, limits, n * prompt // num_steps, n // num_steps, seen // num_steps, n * prompt // num_steps
    )
    for made in range(1, workload.output_tokens):
        keys = n * (prompt + made)
        seconds += step_seconds(counts, limits, n, n, keys, keys)
    return seconds


def bound_of(workload: Workload, counts: Counts, limits: Limits) -> float:
    """Tokens a second, counted as bars.rate_of counts them."""
    output = workload.num_requests * workload.output_tokens
    prompts = workload.num_requests * workload.prompt_tokens
    tokens = prompts if workload.name in PREFILL else output
    if workload.name == "long-context-8":
        tokens = prompts + output
    return tokens / workload_seconds(workload, counts, limits)


class Probe:
    """The compiled probe; each figure is measured once."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "roofline_probe"
        self._known: dict[tuple[str, ...], float] = {}
        source = str(HERE / "roofline_probe.cpp")
        command = ["g++", "-std=c++20", "-O3", "-march=native", "-pthread", source, "-o", str(self._program)]
        subprocess.run(command, check=True)

    def measure(self, threads: int, *what: str) -> float:
        """In units of 10^9 a second."""
        key = (str(threads), *what)
        if key not in self._known:
            done = subprocess.run([str(self._program), *key], check=True, capture_output=True, text=True)
            self._known[key] = float(done.stdout)
        return self._known[key]

    def limits(self, form: str, size: int, threads: int) -> Limits:
        """For weights of `size` bytes in this form."""
        read = self.measure(threads, "read", str(size))
        floats = self.measure(threads, "fma")
        weights = max(self.measure(threads, "bf16"), floats) if form == "bf16" else self.measure(threads, form)
        return Limits(read * 1e9, weights * 1e9, floats * 1e9)


def print_machine(probe: Probe, threads: int) -> None:
    """The limits, on one thread and on all."""
    print(f"| | 1 thread | {threads} threads |\n|---|---|---|")
    for name, *what in (
        ("memory reads, 512 MB, GB/s", "read", "512000000"),
        ("memory reads, 96 MB, GB/s", "read", "96000000"),
        ("4-bit products in groups of 32, GOPS", "q4"),
        ("8-bit products in groups of 32, GOPS", "q8"),
        ("float32 products, GFLOPS", "fma"),
        ("bfloat16 products, GFLOPS (0: none)", "bf16"),
    ):
        print(f"| {name} | {probe.measure(1, *what):,.1f} | {probe.measure(threads, *what):,.1f} |", flush=True)


def make_bounds(probe: Probe, folder: Path, threads: int) -> dict[str, dict[str, dict[str, float]]]:
    """By model, form and workload: tokens a second. Models that are not laid out are left out."""
    bounds: dict[str, dict[str, dict[str, float]]] = {}
    for name, model in MODELS.items():
        for form in FORMS:
            path = folder / "models" / getattr(model, form)
            if path.exists():
                counts = count(path)
                limits = probe.limits(form, counts.weight_bytes, threads)
                of_form = {w.name: bound_of(w, counts, limits) for w in WORKLOADS.values()}
                bounds.setdefault(name, {})[form] = of_form
    return bounds


def print_bounds(bounds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """As a Markdown table."""
    print(f"\n| bound, tokens/s | {' | '.join(WORKLOADS)} |\n" + "|---" * (len(WORKLOADS) + 1) + "|")
    for name, forms in bounds.items():
        for form, rates in forms.items():
            print(f"| {name} {form} | {' | '.join(f'{rate:,.0f}' for rate in rates.values())} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, help="a JSON file for compare.py")
    arguments = parser.parse_args()
    print(describe_machine() + "\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(Path(folder))
        print_machine(probe, arguments.threads)
        bounds = make_bounds(probe, arguments.dir, arguments.threads)
    print_bounds(bounds)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(bounds, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
