"""What `doctor` looks at: each check returns a Check and never raises; what it looks at comes in as arguments."""

import errno
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.cli.sizes import format_bytes
from headway.observe.gpus import Gpus

_LEAST_MEMORY = 1 << 30
_LEAST_DISK = 1 << 30
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "safetensors"),
    "vision": ("torchvision", "PIL"),
    "transformers": ("torch", "transformers"),
    "onnx": ("onnxruntime", "onnx"),
    "grpc": ("grpc", "google.protobuf"),
    "postgres": ("psycopg",),
    "s3": ("s3fs",),
    "gs": ("gcsfs",),
    "gpu": ("pynvml",),
}
"""What tells of each optional part of the installation that it is there."""
_COMPUTING = re.compile(r"sse4_2$|avx|fma$|f16c$|amx_|asimd|sve|i8mm$|bf16$|neon$")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `missing`: Headway cannot serve a model like this."""

    name: str
    status: Literal["ok", "warning", "missing"]
    detail: str
    advice: str = ""
    """What to do; empty for ok."""


def check_python() -> Check:
    """The interpreter and the system under it."""
    detail = f"{platform.python_version()} ({sys.executable}), {platform.system()} {platform.machine()}"
    return Check("python", "ok", detail)


def check_processor(isa: Collection[str], usable_cores: int, all_cores: int) -> Check:
    """Instruction sets that computing can use, and how many cores the affinity and the cgroup's quota leave."""
    sets = ", ".join(name for name in sorted(isa) if _COMPUTING.match(name)) or "none that matter here"
    return Check("processor", "ok", f"{usable_cores} of {all_cores} cores usable; instruction sets: {sets}")


def check_memory(available: int, total: int) -> Check:
    """What a model and its KV cache can take now, cgroup limits included."""
    detail = f"{format_bytes(available)} of {format_bytes(total)} available"
    if available < _LEAST_MEMORY:
        advice = f"even the demo model wants about {format_bytes(_LEAST_MEMORY)}: end something, or raise the limit"
        return Check("memory", "warning", detail, advice)
    return Check("memory", "ok", detail)


def check_cache(folder: Path) -> Check:
    """The folder of downloads: there or makeable, writable, its size, the disk's room."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return Check("cache", "missing", f"{folder}: {nearest} is no folder", "give another --cache-dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Check("cache", "missing", f"{folder} cannot be written", "give another --cache-dir, or mend its rights")
    free = shutil.disk_usage(nearest).free
    detail = f"{folder} holds {format_bytes(_folder_bytes(folder))}, {format_bytes(free)} free on its disk"
    if free < _LEAST_DISK:
        return Check("cache", "warning", detail, "make room, or give another --cache-dir")
    return Check("cache", "ok", detail)


def check_demo(is_cached: bool) -> Check:
    """Whether `serve demo` needs the network."""
    if is_cached:
        return Check("demo model", "ok", "downloaded")
    return Check("demo model", "warning", "not downloaded yet", "headway pull demo (serve demo does it too)")


def check_module(name: str, *, needed_for: str, advice: str, is_needed: bool) -> Check:
    """Whether a module is installed and loads; importing it is the only sure test of an extension."""
    title = name.removeprefix("headway._")
    status: Literal["warning", "missing"] = "missing" if is_needed else "warning"
    if importlib.util.find_spec(name) is None:
        return Check(title, status, f"not installed; needed for {needed_for}", advice)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever a broken extension raises is the finding
        return Check(title, status, f"does not load: {type(error).__name__}: {error}", advice)
    return Check(title, "ok", str(getattr(module, "__version__", "loads")))


def check_executors() -> Check:
    """Which executors can run a model here. PyTorch is found without being loaded, which takes seconds."""
    try:
        from headway import _native
    except ImportError:
        return Check("executors", "missing", "native does not load", "see the line about it above")
    try:
        native = f"native ({_native.chosen_isa()}, of {', '.join(_native.available_isas())})"
    except ValueError as error:  # HEADWAY_ISA
        return Check("executors", "missing", str(error), "set HEADWAY_ISA to one of these, or unset it")
    if importlib.util.find_spec("torch") is None:
        return Check("executors", "ok", f"{native}; torch is not installed, and few models or dtypes need it")
    return Check("executors", "ok", f"{native}, torch")


def check_gpus(found: Gpus | str) -> Check:
    """What models can take on each GPU; `found`: as open_gpus() gives it."""
    if found == "":
        return Check("gpus", "ok", "none (no NVIDIA driver)")
    if isinstance(found, str):
        is_absent = "not installed" in found
        advice = "pip install 'headway[gpu]'" if is_absent else "see nvidia-smi, and mend the driver"
        return Check("gpus", "warning", f"an NVIDIA driver is there, but {found}: no GPU's memory is counted", advice)
    sizes = [f"cuda:{index} {format_bytes(size)}" for index, size in enumerate(found.total_bytes())]
    return Check("gpus", "ok", ", ".join(sizes) or "none")


def check_extras() -> Check:
    """Which optional parts are installed; what is not is named with its extra, and needed by who uses it alone."""
    absent = {extra for extra, modules in EXTRAS.items() for module in modules if not _is_installed(module)}
    present = ", ".join(extra for extra in EXTRAS if extra not in absent) or "none"
    missing = ", ".join(extra for extra in EXTRAS if extra in absent)
    return Check(
        "extras", "ok", present + (f"; not installed: {missing} (pip install 'headway[NAME]')" if missing else "")
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False


def check_port(host: str, port: int, find_holder: Callable[[int], str | None]) -> Check:
    """Whether the server could listen there now; if not, who does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = find_holder(port)
            advice = "give another --port" + (f", or end {holder}" if holder else "")
            return Check("port", "missing", f"{port} on {host} is taken by {holder or 'another program'}", advice)
        return Check("port", "missing", f"{port} on {host}: {error.strerror or error}", "give another --host or --port")
    return Check("port", "ok", f"{port} on {host} is free")


def check_settings(mistake: str | None, misspelt: Sequence[str]) -> Check:
    """The environment and the YAML file, as serve would read them."""
    if mistake is not None:
        return Check("settings", "missing", mistake, "mend it: serve stops here")
    if misspelt:
        return Check("settings", "warning", "; ".join(misspelt), "mend or unset it")
    return Check("settings", "ok", "readable")


def find_port_holder(port: int) -> str | None:
    """`name (pid)` of who listens on the port, as far as this user may see."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return None
            try:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
            except psutil.Error:
                return f"process {connection.pid}"
    return None


def _folder_bytes(folder: Path) -> int:
    """Bytes on disk; links are not followed, what vanishes meanwhile is not counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total
