"""What POST /predict adds to a model, and what computing requests together gains.

    predict.py [--dir DIR] [--rounds 5] [--only latency|switching|batching|cold]

latency: one client on one connection that is kept, raw sockets, against the same call without Headway: a Python class
that gives back its input, and all-MiniLM-L6-v2 (DIR/models, laid out by prepare.sh DIR encoders) by ONNX Runtime, and
on Headway's own executor against LLM.embed in this process. In turns; medians. Bar: less than 1 ms more.
switching: two resident models that give back their input, asked in turns, against one of them asked again and again, in
the same minutes; medians. It should cost nothing: no bar, since the difference is of the size of its own noise.
batching: 32 clients ask a model of one layer of 64 MB (float32, ONNX) as fast as they are answered, with batches of 32
and with batches of 1. Bar: at least twice the requests a second.
cold: MiniLM asked of a server that serves another model too, has not loaded this one, and was idle until a spare
process waited; until the answer. Against the load and the answer alone in a fresh interpreter, by LLM.embed and by ONNX
Runtime, from the moment when all is imported (and with its start and its imports). In turns; medians. Bar: at most 1.5
times the load alone.
The exit status is 1 below a bar.
"""

import argparse
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from http_load import Connection, Load, requests_a_second
from machine import describe_machine, usable_cores

MAX_ADDED_MS = 1.0
MIN_GAIN = 2.0
MAX_COLD_RATIO = 1.5
NUM_CLIENTS = 32
TEXT = "How do I reset the password of my account?"
WIDE, NARROW = 4096, 64
PYTHON_MODEL = "class Model:\n    def predict(self, value):\n        return value\n"
SERVE = """
import gc, json, sys
gc.disable()
from pathlib import Path
from headway.cli.startup import end
from headway.config import CheckpointConfig, InferConfig, ModelConfig, PoolConfig, ServerConfig
from headway.server.run import run
from headway.service.local import LocalService
def read(name, asked):
    return ModelConfig(**{**asked, "served_names": (name,), "infer": InferConfig(**asked.get("infer", {}))})
models = [read(*each) for each in json.loads(sys.argv[1]).items()]
config = ServerConfig(port=int(sys.argv[2]))
sys.exit(run(LocalService(models, PoolConfig(), config, CheckpointConfig(cache_dir=Path("/nonexistent"))), config))
"""
LLM_ALONE = """
import sys, time
from headway import LLM
import headway.predictors.encoder
start = time.perf_counter()
with LLM(sys.argv[1]) as llm:
    llm.embed(sys.argv[2])
    print(time.perf_counter() - start, flush=True)
"""
ONNX_ALONE = """
import sys, time
import numpy as np
import onnxruntime
from tokenizers import Tokenizer
start = time.perf_counter()
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = int(sys.argv[4])
settings.add_session_config_entry("session.force_spinning_stop", "1")
session = onnxruntime.InferenceSession(sys.argv[1], settings)
tokenizer = Tokenizer.from_file(sys.argv[3])
tokenizer.no_padding()
text = tokenizer.encode(sys.argv[2])
columns = {"input_ids": text.ids, "attention_mask": text.attention_mask, "token_type_ids": text.type_ids}
session.run(None, {name: np.array([row], np.int64) for name, row in columns.items()})[0].tolist()
print(time.perf_counter() - start, flush=True)
"""


def make_request(value: Any, model: str = "m") -> bytes:
    """POST /predict with the value."""
    body = json.dumps({"model_id": model, "input_data": value}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def serve(**model: Any) -> Iterator[int]:
    """A server of one model, named m, on a free port, loaded; ended when the block is left."""
    with serve_models({"m": model}) as port:
        yield port


@contextmanager
def serve_models(models: dict[str, dict[str, Any]]) -> Iterator[int]:
    """A server on a free port, its first model loaded; ended when the block is left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-c", SERVE, json.dumps(models), str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(process, port)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            time.sleep(0.05)
            continue
        with connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if connection.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.05)
    raise SystemExit(f"the server is not ready (exit code {process.poll()})")


def seconds_of(call: Callable[[], Any], times: int) -> list[float]:
    """Of each call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def measure_latency(name: str, bare: Callable[[], Any], request: bytes, port: int, rounds: int, times: int) -> bool:
    """Whether the bar holds."""
    connection = Connection(port)
    seconds_of(lambda: connection.ask(request), times // 4)
    seconds_of(bare, times // 4)
    without, through = [], []
    for _ in range(rounds):
        without += seconds_of(bare, times)
        through += seconds_of(lambda: connection.ask(request), times)
    added_ms = (statistics.median(through) - statistics.median(without)) * 1e3
    print(
        f"  {name}: {statistics.median(without) * 1e3:.3f} ms alone, {statistics.median(through) * 1e3:.3f} ms through"
        f" /predict (p99 {sorted(through)[len(through) * 99 // 100] * 1e3:.3f}); added {added_ms:.3f} ms"
        f" (bar {MAX_ADDED_MS:g})"
    )
    return added_ms < MAX_ADDED_MS


def latency(folder: Path | None, rounds: int, scratch: Path) -> bool:
    """Both models."""
    (scratch / "model.py").write_text(PYTHON_MODEL)
    space: dict[str, Any] = {}
    exec(PYTHON_MODEL, space)
    model = space["Model"]()
    with serve(source=str(scratch / "model.py"), framework="python", type="python") as port:
        holds = measure_latency("no-op", lambda: model.predict(TEXT), make_request(TEXT), port, rounds, 1000)
    if folder is None:
        print("  MiniLM: not measured: give --dir")
        return holds
    source = folder.absolute() / "models" / "all-minilm-l6-v2"
    embed, path = onnx_encoder(source, scratch)
    options = {"text": {"tokenizer": str(source / "tokenizer.json")}}
    with serve(source=str(path), framework="onnx", type="embedding", options=options) as port:
        holds = measure_latency("MiniLM (onnx)", embed, make_request(TEXT), port, rounds, 300) and holds
    from headway import LLM

    with LLM(str(source)) as llm, serve(source=str(source), type="embedding") as port:
        name = "MiniLM (headway)"
        return measure_latency(name, lambda: llm.embed(TEXT), make_request(TEXT), port, rounds, 300) and holds


def switching(rounds: int, scratch: Path) -> None:
    """Prints the medians."""
    (scratch / "model.py").write_text(PYTHON_MODEL)
    model = {"source": str(scratch / "model.py"), "framework": "python", "type": "python"}
    with serve_models({"m": model, "other": model}) as port:
        connection = Connection(port)
        pair = itertools.cycle([make_request(TEXT), make_request(TEXT, "other")])
        seconds_of(lambda: connection.ask(next(pair)), 200)
        same, turns = [], []
        for _ in range(rounds):
            same += seconds_of(lambda: connection.ask(make_request(TEXT)), 1000)
            turns += seconds_of(lambda: connection.ask(next(pair)), 1000)
    one, two = statistics.median(same) * 1e3, statistics.median(turns) * 1e3
    print(f"  switching: one model {one:.3f} ms, two in turns {two:.3f} ms: {two - one:+.3f} ms")


def onnx_encoder(source: Path, scratch: Path) -> tuple[Callable[[], Any], Path]:
    """The text's vector by tokenizers and ONNX Runtime alone; the file: the exported encoder and its mean."""
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
    from tokenizers import Tokenizer

    model = onnx.load(str(source / "onnx" / "model.onnx"))
    states = model.graph.output[0].name
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "mean_axes"))
    model.graph.node.append(helper.make_node("ReduceMean", [states, "mean_axes"], ["vector"], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["batch", 384]))
    onnx.save(model, str(scratch / "minilm.onnx"))
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = usable_cores()
    settings.add_session_config_entry("session.force_spinning_stop", "1")  # as the server's session has it
    session = onnxruntime.InferenceSession(str(scratch / "minilm.onnx"), settings)
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_padding()

    def embed() -> Any:
        encoding = tokenizer.encode(TEXT)
        columns = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        columns["token_type_ids"] = encoding.type_ids
        return session.run(None, {name: np.array([row], np.int64) for name, row in columns.items()})[0].tolist()

    return embed, scratch / "minilm.onnx"


def cold(folder: Path, rounds: int, scratch: Path) -> bool:
    """Both ways to run MiniLM."""
    (scratch / "model.py").write_text(PYTHON_MODEL)
    other = {"source": str(scratch / "model.py"), "framework": "python", "type": "python"}
    source = folder.absolute() / "models" / "all-minilm-l6-v2"
    _, path = onnx_encoder(source, scratch)
    tokenizer = str(source / "tokenizer.json")
    ours = {"source": str(source), "type": "embedding"}
    options = {"text": {"tokenizer": tokenizer}}
    onnx = {"source": str(path), "framework": "onnx", "type": "embedding", "options": options}
    holds = measure_cold("MiniLM (headway)", [LLM_ALONE, str(source), TEXT], {"other": other, "m": ours}, rounds)
    alone = [ONNX_ALONE, str(path), TEXT, tokenizer, str(usable_cores())]
    return measure_cold("MiniLM (onnx)", alone, {"other": other, "m": onnx}, rounds) and holds


def measure_cold(name: str, alone: Sequence[str], models: dict[str, dict[str, Any]], rounds: int) -> bool:
    """Whether the bar holds. The model m is unloaded between two rounds; its files are in the system's cache.

    The interpreter alone is timed while the server idles, its spare process there: not beside that one's imports.
    """
    unload = b"POST /v2/repository/models/m/unload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    bare, loads, through = list[float](), list[float](), list[float]()
    with serve_models(models) as port:
        connection = Connection(port)
        for number in range(rounds + 1):
            _wait_for_spare(port)
            whole, load = _seconds_until_answered(alone)
            answered = seconds_of(lambda: connection.ask(make_request(TEXT)), 1)
            connection.ask(unload)
            if number:  # the first reads files
                bare.append(whole)
                loads.append(load)
                through += answered
    ratio = statistics.median(through) / statistics.median(loads)
    print(
        f"  {name}: {statistics.median(loads):.2f} s alone (fastest {min(loads):.2f}; with its start and imports"
        f" {statistics.median(bare):.2f}), {statistics.median(through):.2f} s of a server (fastest {min(through):.2f})"
        f"; {ratio:.2f} times (bar {MAX_COLD_RATIO:g})"
    )
    return ratio <= MAX_COLD_RATIO


def _wait_for_spare(port: int) -> None:
    """Until a process waits for a model: the server starts it when it is idle."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            page = b"".join(iter(lambda: connection.recv(1 << 20), b""))
        if b"\nheadway_spare_processes 1.0\n" in page:
            return
        time.sleep(0.1)
    raise SystemExit("no process waits for a model")


def _seconds_until_answered(arguments: Sequence[str]) -> tuple[float, float]:
    """From the start of an interpreter to its first line, and the seconds that this line tells."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE) as process:
        line = process.stdout.readline() if process.stdout is not None else b""
        taken = time.perf_counter() - start
    if not line:
        raise SystemExit(f"a model alone did not answer (exit code {process.returncode})")
    return taken, float(line)


def write_mlp(path: Path, sizes: Sequence[int]) -> Path:
    """Layers between so many numbers, with ReLU between the layers, float32: x [n, sizes[0]] to y [n, sizes[-1]]."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, last, num_layers = [], [], "x", len(sizes) - 1
    for number, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        array = (rng.normal(size=(rows, columns)) / rows**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        is_last = number == num_layers - 1
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], ["y" if is_last else f"h{number}"]))
        if not is_last:
            nodes.append(helper.make_node("Relu", [f"h{number}"], [f"r{number}"]))
            last = f"r{number}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", sizes[-1]])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def batching(rounds: int, scratch: Path) -> bool:
    """In turns; medians."""
    source = str(write_mlp(scratch / "mlp.onnx", (NARROW, WIDE, WIDE, 8)))
    request = make_request([[0.5] * NARROW])
    loads: dict[int, list[Load]] = {1: [], NUM_CLIENTS: []}
    model = {"source": source, "framework": "onnx", "type": "tensor"}
    for _ in range(rounds):
        for size, measured in loads.items():
            with serve(**model, infer={"max_batch_size": size}) as port:
                measured.append(requests_a_second(port, request, NUM_CLIENTS, 3.0))
    for size, measured in loads.items():
        print(
            f"  batches of {size}: {statistics.median(it.rate for it in measured):,.0f} requests/s,"
            f" p99 {statistics.median(it.tail_ms for it in measured):.1f} ms; processor time a request: client"
            f" {statistics.median(it.client_us for it in measured):.0f} us, server"
            f" {statistics.median(it.server_us for it in measured):.0f} us"
        )
    one, many = (statistics.median(it.rate for it in measured) for measured in loads.values())
    print(f"  gain {many / one:.2f} (bar {MIN_GAIN:g})")
    return many >= MIN_GAIN * one


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=os.environ.get("HEADWAY_BENCH_DIR"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("latency", "switching", "batching", "cold"))
    options = parser.parse_args(arguments)
    print(f"{describe_machine()}\n{usable_cores()} cores are shared by client, server and model.")
    holds = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = None if options.dir is None else Path(options.dir)
        if options.only in (None, "latency"):
            holds = latency(folder, options.rounds, Path(scratch))
        if options.only in (None, "switching"):
            switching(options.rounds, Path(scratch))
        if options.only in (None, "batching"):
            holds = batching(options.rounds, Path(scratch)) and holds
        if options.only in (None, "cold") and folder is not None:
            holds = cold(folder, options.rounds, Path(scratch)) and holds
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
