"""The torch executor on a GPU against transformers: output tokens a second of one request and of 64, in turn.

    gpu.py --dir DIR [--model smollm2-135m] [--rounds 3]

Every engine runs in this environment, whose PyTorch has to be a build for CUDA; without a GPU nothing is measured and
the exit status is 0. Headway with captured steps and with --enforce-eager, transformers with generate() as it comes
(scaled dot product attention, dynamic cache); its static cache with torch.compile is left out. In bfloat16 and float16.
"""

import argparse
import statistics
import sys
from pathlib import Path

import torch
from engines import HERE, MODELS, EngineFailed, run_script
from machine import describe_machine

WORKLOADS = ("single-128", "sixty-four-128")
SCRIPTS = {
    "headway": ("run_headway.py", ("--executor", "torch", "--device", "cuda")),
    "headway, eager": ("run_headway.py", ("--executor", "torch", "--device", "cuda", "--enforce-eager")),
    "transformers": ("peers/run_transformers.py", ("--device", "cuda")),
}


def measure(folder: Path, dtype: str, num_rounds: int) -> dict[tuple[str, str], list[float]]:
    """Output tokens a second by engine and workload, a figure a round. Raises EngineFailed."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(num_rounds):
        for name, (script, arguments) in SCRIPTS.items():
            command = [sys.executable, str(HERE / script), str(folder), "--workloads", ",".join(WORKLOADS)]
            command += ["--round", str(round_), "--threads", "1", "--dtype", dtype, *arguments]
            for made in run_script(name, command, 1, is_ours=script == "run_headway.py"):
                speeds.setdefault((name, made.workload), []).append(made.output_tokens / made.seconds)
    return speeds


def print_table(dtype: str, speeds: dict[tuple[str, str], list[float]]) -> None:
    """Medians, and ratios to transformers' of the same round."""
    print(f"\n| {dtype} | " + " | ".join(f"{name} tokens/s | x transformers" for name in WORKLOADS) + " |")
    print("|---|" + "---|---|" * len(WORKLOADS))
    for engine in SCRIPTS:
        cells = []
        for workload in WORKLOADS:
            ours, theirs = speeds[engine, workload], speeds["transformers", workload]
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            cells.append(f"{statistics.median(ours):,.0f} | {ratio:.2f}")
        print(f"| {engine} | " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="what prepare.sh laid out")
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("not measured: no GPU")
        return 0
    print(f"{describe_machine()}\nGPU: {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    folder = arguments.dir / "models" / MODELS[arguments.model].bf16
    try:
        for dtype in ("bfloat16", "float16"):
            print_table(dtype, measure(folder, dtype, arguments.rounds))
    except EngineFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
