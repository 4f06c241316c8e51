"""One ONNX model behind Headway, LitServe, MLServer and Triton: requests a second and the 99th percentile, in turns.

    onnx_serving.py --dir DIR [--rounds 3] [--seconds 3] [--only NAME ...] [--clients 8] [--threads N]

The model is an MLP (64 -> 1024 -> 1024 -> 8), a request one row of 64 numbers as JSON, sent by so many clients on
connections that are kept; each server's session has so many threads, one for each core unless it is told. Of a model
this small one is the best for all of them where server and clients share few cores. DIR is laid out by `prepare.sh DIR
litserve mlserver triton`. Each server runs in the configurations that its own documents advise; its best counts.
Headway, MLServer and Triton speak the Open Inference Protocol, LitServe a path of its own, with the same numbers.
The client is one process for all of them and shares the cores with the server: what it takes is told with each.
Bars: 1.5 times LitServe's requests a second; not fewer than MLServer's and Triton's, at no worse a 99th percentile.
The exit status is 1 below a bar.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from http_load import Connection, Load, requests_a_second
from machine import describe_machine, usable_cores
from predict import serve, write_mlp

HERE = Path(__file__).parent
SIZES = (64, 1024, 1024, 8)
BARS = {"litserve": 1.5, "mlserver": 1.0, "triton": 1.0}
MAX_BATCH = 32


@dataclass(frozen=True)
class Setup:
    """What a server is started with."""

    folder: Path
    """Of the environments."""
    scratch: Path
    """With the model, mlp.onnx."""
    threads: int
    """Of its session."""
    stack: ExitStack
    """Ends it."""

    @property
    def model(self) -> str:
        """Its path."""
        return str(self.scratch / "mlp.onnx")


@dataclass(frozen=True, eq=False)
class Peer:
    """A way to serve the model."""

    name: str
    variant: str
    start: Callable[[Setup], int]
    """The port, ready."""
    path: str
    body: Any


@dataclass
class Measured:
    """What each round gave."""

    loads: list[Load] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return statistics.median(load.rate for load in self.loads)

    @property
    def tail_ms(self) -> float:
        """The 99th percentile."""
        return statistics.median(load.tail_ms for load in self.loads)

    def __str__(self) -> str:
        server_us = statistics.median(load.server_us for load in self.loads)
        client_us = statistics.median(load.client_us for load in self.loads)
        return (
            f"{self.rate:8,.0f} requests/s, p99 {self.tail_ms:7.2f} ms; processor time a request: server"
            f" {server_us:,.0f} us, client {client_us:,.0f} us"
        )


def free_port() -> int:
    """One that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, ready_path: str, **options: Any) -> Iterator[int]:
    """A server that answers 200 at the path; ended when the block is left, with all that it started."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **options) as process,
    ):
        try:
            if not _becomes_ready(process, port, ready_path):
                log.seek(0)
                raise SystemExit(f"{command} is not ready: {log.read()[-3000:].decode(errors='replace')}")
            yield port
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _becomes_ready(process: "subprocess.Popen[bytes]", port: int, path: str) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                if connection.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                    return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def start_headway(batch: int) -> Callable[[Setup], int]:
    """`batch`: of max_batch_size."""

    def start(setup: Setup) -> int:
        model = {"source": setup.model, "framework": "onnx", "type": "tensor", "options": {"threads": setup.threads}}
        return setup.stack.enter_context(serve(**model, infer={"max_batch_size": batch}))

    return start


def start_litserve(batch: int) -> Callable[[Setup], int]:
    """`batch`: of max_batch_size; 1: without batches."""

    def start(setup: Setup) -> int:
        port = free_port()
        python = str(setup.folder / "venv" / "litserve" / "bin" / "python")
        script = str(HERE / "peers" / "serve_litserve.py")
        command = [python, script, setup.model, str(port), str(batch), str(setup.threads)]
        return setup.stack.enter_context(running(command, port, "/health"))

    return start


def start_mlserver(batch: int) -> Callable[[Setup], int]:
    """In the server's own process, without its workers. `batch`: of max_batch_size."""

    def start(setup: Setup) -> int:
        port, models = free_port(), Path(tempfile.mkdtemp(dir=setup.scratch))
        settings = {"http_port": port, "grpc_port": free_port(), "metrics_port": free_port(), "host": "127.0.0.1"}
        settings |= {"parallel_workers": 0, "debug": False}
        (models / "settings.json").write_text(json.dumps(settings))
        model: dict[str, Any] = {"name": "m", "implementation": "mlserver_onnx.OnnxModel"}
        model["parameters"] = {"uri": setup.model, "extra": {"threads": setup.threads}}
        if batch > 1:
            model |= {"max_batch_size": batch, "max_batch_time": 0.001}
        (models / "model-settings.json").write_text(json.dumps(model))
        binaries = setup.folder / "venv" / "mlserver" / "bin"
        path = {**os.environ, "PYTHONPATH": str(HERE / "peers"), "PATH": f"{binaries}:{os.environ['PATH']}"}
        command = [str(binaries / "mlserver"), "start", str(models)]
        return setup.stack.enter_context(running(command, port, "/v2/models/m/ready", env=path))

    return start


def start_triton(batch: int) -> Callable[[Setup], int]:
    """`batch`: of dynamic batches; 1: without."""

    def start(setup: Setup) -> int:
        sys.path.insert(0, str(HERE.parent / "tests" / "peers"))
        import triton_server

        triton_server.ENVIRONMENT = setup.folder / "venv" / "triton"
        triton = setup.stack.enter_context(triton_server.serve_triton(Path(tempfile.mkdtemp(dir=setup.scratch))))
        config = (HERE / "peers" / "triton_onnx.pbtxt").read_text()
        config += "dynamic_batching { }\n" if batch > 1 else ""
        code = (HERE / "peers" / "triton_onnx.py").read_text()
        code = code.replace("MODEL_PATH", setup.model).replace("NUM_THREADS", str(setup.threads))
        triton.write_model("m", config, code)
        port = int(triton.http_address.rpartition(":")[2])
        connection = Connection(port)
        connection.ask(make_post("/v2/repository/models/m/load", {}))
        return port

    return start


def make_post(path: str, body: Any) -> bytes:
    """A request as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


ROW = [round(0.01 * number, 2) for number in range(SIZES[0])]
OIP = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, SIZES[0]], "data": ROW}]}
V2 = "/v2/models/m/infer"
PEERS = (
    Peer("headway", "batches of 1", start_headway(1), V2, OIP),
    Peer("headway", f"batches of {MAX_BATCH}", start_headway(MAX_BATCH), V2, OIP),
    Peer("litserve", "batches of 1", start_litserve(1), "/predict", {"x": ROW}),
    Peer("litserve", f"batches of {MAX_BATCH}", start_litserve(MAX_BATCH), "/predict", {"x": ROW}),
    Peer("mlserver", "in its process", start_mlserver(1), V2, OIP),
    Peer("mlserver", f"in its process, batches of {MAX_BATCH}", start_mlserver(MAX_BATCH), V2, OIP),
    Peer("triton", "batches of 1", start_triton(1), V2, OIP),
    Peer("triton", f"batches of {MAX_BATCH}", start_triton(MAX_BATCH), V2, OIP),
)


def check_answer(peer: Peer, port: int, scratch: Path) -> None:
    """Every server must give the model's own numbers. Raises SystemExit."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(scratch / "mlp.onnx"), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": np.array([ROW], np.float32)})
    answer = json.loads(Connection(port).ask(make_post(peer.path, peer.body)))
    given = answer["outputs"][0]["data"] if "outputs" in answer else answer["output"]
    if not np.allclose(np.ravel(given), np.ravel(wanted), rtol=1e-3, atol=1e-5):
        raise SystemExit(f"{peer.name} ({peer.variant}) gave {given}, the model gives {wanted}")


def measure(peers: list[Peer], options: argparse.Namespace) -> dict[Peer, Measured]:
    """Each server by turns, started anew."""
    measured = {peer: Measured() for peer in peers}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_mlp(scratch / "mlp.onnx", SIZES)
        for _ in range(options.rounds):
            for peer in peers:
                with ExitStack() as stack:
                    port = peer.start(Setup(options.dir.absolute(), scratch, options.threads, stack))
                    check_answer(peer, port, scratch)
                    request = make_post(peer.path, peer.body)
                    requests_a_second(port, request, options.clients, options.seconds / 4)
                    measured[peer].loads.append(requests_a_second(port, request, options.clients, options.seconds))
    return measured


def judge(measured: dict[Peer, Measured]) -> bool:
    """Prints the table and the ratios; whether the bars hold."""
    best: dict[str, Measured] = {}
    for peer, it in measured.items():
        print(f"  {peer.name:<9} {peer.variant:<32} {it}")
        if peer.name not in best or it.rate > best[peer.name].rate:
            best[peer.name] = it
    holds = True
    for name, bar in BARS.items():
        if name in best and "headway" in best:
            ratio = best["headway"].rate / best[name].rate
            is_slower = name != "litserve" and best["headway"].tail_ms > best[name].tail_ms
            holds = holds and ratio >= bar and not is_slower
            print(f"  headway / {name}: {ratio:.2f} (bar {bar:g}){'; its p99 is worse' if is_slower else ''}")
    return holds


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=usable_cores(), help="of each server's session")
    parser.add_argument("--only", nargs="*", default=[*BARS, "headway"])
    options = parser.parse_args()
    print(f"{describe_machine()}\n{options.clients} clients; {usable_cores()} cores are shared by them and the server.")
    peers = [peer for peer in PEERS if peer.name in options.only]
    measured = measure(peers, options)
    return 0 if judge(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
