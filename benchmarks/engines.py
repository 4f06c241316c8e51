"""The engines that are compared, and how one of them is run once: a process of its own that prints measurements."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads import Measurement

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Model:
    """One model in the forms that engines take; names under DIR/models."""

    bf16: str
    q4: str
    q8: str
    onnx: str
    is_random: bool
    """Its weights are random."""


MODELS: Mapping[str, Model] = {
    "smollm2-135m": Model(
        "smollm2-135m-bf16", "smollm2-135m-q4_1.gguf", "smollm2-135m-q8_0.gguf", "smollm2-135m-ort-int4", False
    ),
    "qwen2.5-0.5b-shape": Model(
        "qwen2.5-0.5b-shape-bf16",
        "qwen2.5-0.5b-shape-q4_1.gguf",
        "qwen2.5-0.5b-shape-q8_0.gguf",
        "qwen2.5-0.5b-shape-ort-int4",
        True,
    ),
}
"""The first is real; the second has random weights (prepare.sh)."""


@dataclass(frozen=True)
class Engine:
    """How one engine is started."""

    script: str
    venv: str | None
    """Under DIR/venv; None: the environment that runs this."""
    form: str
    """Which form of the model it takes: a field of Model."""
    arguments: tuple[str, ...] = ()


ENGINES: Mapping[str, Engine] = {
    "headway": Engine("run_headway.py", None, "q4"),
    "headway-q8": Engine("run_headway.py", None, "q8"),
    "headway-bf16": Engine("run_headway.py", None, "bf16"),
    "headway-bf16-torch": Engine("run_headway.py", None, "bf16", ("--executor", "torch")),
    "openvino": Engine("peers/run_openvino.py", "openvino", "q4"),
    "openvino-2048": Engine("peers/run_openvino.py", "openvino", "q4", ("--max-num-batched-tokens", "2048")),
    "openvino-q8": Engine("peers/run_openvino.py", "openvino", "q8"),
    "llamacpp-unified": Engine("peers/run_llamacpp.py", "llamacpp", "q4", ("--kv", "unified")),
    "llamacpp-split": Engine("peers/run_llamacpp.py", "llamacpp", "q4", ("--kv", "split")),
    "llamacpp-q8": Engine("peers/run_llamacpp.py", "llamacpp", "q8", ("--kv", "split")),
    "ortgenai": Engine("peers/run_ortgenai.py", "ortgenai", "onnx"),
    "vllm": Engine("peers/run_vllm.py", "vllm", "bf16"),
    "vllm-eager": Engine("peers/run_vllm.py", "vllm", "bf16", ("--eager",)),
    "vllm-eager-float32": Engine("peers/run_vllm.py", "vllm", "bf16", ("--eager", "--dtype", "float32")),
    "transformers": Engine("peers/run_transformers.py", "transformers", "bf16"),
    "transformers-float32": Engine("peers/run_transformers.py", "transformers", "bf16", ("--dtype", "float32")),
}


class EngineFailed(Exception):
    """An engine's process ended with an error, or printed what is no measurement."""


@dataclass(frozen=True)
class Run:
    """What the runs of a comparison have in common."""

    folder: Path
    """What prepare.sh laid out."""
    model: Model
    workloads: Sequence[str]
    threads: int


def script_of(name: str) -> Path:
    """What runs an engine."""
    return HERE / ENGINES[name].script


def run_once(name: str, run: Run, round_: int) -> Iterator[Measurement]:
    """One engine, one round: each measurement as it is made. Raises EngineFailed with the end of what it wrote."""
    engine = ENGINES[name]
    python = sys.executable if engine.venv is None else str(run.folder / "venv" / engine.venv / "bin" / "python")
    model = run.folder / "models" / getattr(run.model, engine.form)
    command = [python, str(script_of(name)), str(model), "--workloads", ",".join(run.workloads)]
    command += ["--round", str(round_), "--threads", str(run.threads), *engine.arguments]
    return stream_script(name, command, run.threads, is_ours=engine.venv is None)


def run_script(name: str, command: Sequence[str], threads: int, *, is_ours: bool) -> list[Measurement]:
    """All that an engine's script measures. Raises EngineFailed, also where it made too few or too many tokens."""
    measurements = list(stream_script(name, command, threads, is_ours=is_ours))
    for made in measurements:
        if made.output_tokens != made.wanted_tokens:
            raise EngineFailed(f"{name} made {made.output_tokens} tokens of {made.wanted_tokens} on {made.workload}")
    return measurements


def stream_script(name: str, command: Sequence[str], threads: int, *, is_ours: bool) -> Iterator[Measurement]:
    """Runs an engine's script, until its reader ends; `is_ours`: it sees this repository's src. Raises EngineFailed."""
    paths = [str(HERE)] + ([str(HERE.parent / "src")] if is_ours else [])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=complaints, text=True) as process,
    ):
        try:
            for line in filter(str.strip, process.stdout or ()):
                yield _parse(name, line)
            status = process.wait()
        finally:
            process.kill()
        if status != 0:
            complaints.seek(0)
            raise EngineFailed(f"{name} ended with status {status}:\n{complaints.read()[-2000:]}")


def _parse(name: str, line: str) -> Measurement:
    try:
        return Measurement(**(json.loads(line) | {"engine": name}))
    except (ValueError, TypeError) as error:
        raise EngineFailed(f"{name} printed what is no measurement ({error}):\n{line[-2000:]}") from error
