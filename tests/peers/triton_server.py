"""A real Triton Inference Server on this machine: its own process, a model repository, free ports of 127.0.0.1.

    with serve_triton(tmp_path) as triton:
        triton.write_model("add_sub", CONFIG_PBTXT, PYTHON_CODE)
        ...                            # load it by POST {triton.http_url}/v2/repository/models/add_sub/load

It is the one that nvidia-pytriton carries (environments/triton.txt), which has the Python backend alone. `make
test-peers` makes its environment, .venvs/triton.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venvs" / "triton"
VERSION = "2.51.0"
"""As /v2 tells it."""
_READY_S = 60.0
_STOP_S = 20.0


@dataclass(frozen=True)
class TritonServer:
    """One that runs."""

    http_url: str
    """http://127.0.0.1:PORT, for REST."""
    http_address: str
    """127.0.0.1:PORT, as tritonclient.http wants it."""
    grpc_address: str
    repository: Path
    """Its model repository; nothing of it is loaded before it is told so, by the repository's API."""
    log: Path
    pid: int

    def write_model(self, name: str, config: str, code: str, *, version: int = 1) -> Path:
        """A model of the Python backend: config.pbtxt, and model.py in the version's folder. The model's folder."""
        folder = self.repository / name
        (folder / str(version)).mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(config)
        (folder / str(version) / "model.py").write_text(code)
        return folder


@contextlib.contextmanager
def serve_triton(folder: Path, *, flags: Sequence[str] = ()) -> Iterator[TritonServer]:
    """Lays out `folder` (backends, models, log), starts the server, waits until it is ready; ends it."""
    packages = ENVIRONMENT / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    server = packages / "pytriton" / "tritonserver"
    assert server.exists(), f"{ENVIRONMENT} is missing: make test-peers makes it"
    backends = _lay_out_backends(server, packages, folder / "backends")
    repository = folder / "models"
    repository.mkdir()
    http, grpc = _free_ports(2)
    command = [
        str(server / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--cache-directory={server / 'caches'}",
        "--model-control-mode=explicit",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
        # It waits so long for connections that are kept alive: 30 s if nothing is said.
        "--exit-timeout-secs=3",
        *flags,
    ]
    log = folder / "triton.log"
    with log.open("wb") as output, _running(command, packages, output) as process:
        triton = TritonServer(
            f"http://127.0.0.1:{http}", f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", repository, log, process.pid
        )
        _wait_until_ready(triton, process)
        yield triton


def _lay_out_backends(server: Path, packages: Path, backends: Path) -> Path:
    """The Python backend with the stub of this interpreter's version in it, where it looks for one."""
    shutil.copytree(server / "backends", backends)
    stub = backends / "python" / "triton_python_backend_stub"
    shutil.copy(server / "python_backend_stubs" / sysconfig.get_python_version() / stub.name, stub)
    stub.chmod(0o755)
    # The stub's interpreter does not read PYTHONPATH, and with numpy 2, which others may have installed, it gives and
    # takes wrong arrays without a word. This file is the first that imports numpy.
    utilities = backends / "python" / "triton_python_backend_utils.py"
    utilities.write_text(f"import sys\nsys.path.insert(0, {str(packages)!r})\n" + utilities.read_text())
    return backends


@contextlib.contextmanager
def _running(command: Sequence[str], packages: Path, output: object) -> Iterator["subprocess.Popen[bytes]"]:
    libraries = f"{packages / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(triton: TritonServer, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"{triton.http_url}/v2/health/ready", timeout=5).close()
            return
        is_starting = process.poll() is None and time.monotonic() < deadline
        assert is_starting, triton.log.read_text(errors="replace")[-3000:]
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
