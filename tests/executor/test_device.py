"""Which device auto and names mean, and what is told where there is none. torch.cuda is played: no GPU is needed."""

from pathlib import Path

import pytest
import torch

from headway.config import EngineConfig
from headway.errors import InvalidConfig, InvariantBroken
from headway.executor import choose_dtype
from headway.executor.device import DeviceKV, choose_device, device_available_bytes
from headway.executor.factory import choose_executor
from headway.model import make_program
from small_shapes import LLAMA

NO_CUDA = AssertionError("Torch not compiled with CUDA enabled\nand more")


class Cuda:
    """torch.cuda of a machine with `count` GPUs; `error` is what torch reports where it can use none."""

    def __init__(self, count: int = 0, error: Exception | None = None, capability: tuple[int, int] = (9, 0)) -> None:
        self._count, self._error, self._capability = count, error, capability

    def is_available(self) -> bool:
        return self._count > 0

    def init(self) -> None:
        if self._error is not None:
            raise self._error

    def device_count(self) -> int:
        return self._count

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return {0: 1000, 1: 2000}[device.index or 0], 4000

    def get_device_capability(self, device: torch.device) -> tuple[int, int]:
        return self._capability


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a file system with a driver."""
    driver = tmp_path / "proc/driver/nvidia/version"
    driver.parent.mkdir(parents=True)
    driver.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("options", "count", "chosen"),
    [
        ({}, 1, "cuda:0"),
        ({"executor": "torch"}, 2, "cuda:0"),
        ({}, 0, "cpu"),
        ({"executor": "native"}, 1, "cpu"),
        ({"quantization": "int8"}, 1, "cpu"),
        ({"kv_cache_dtype": "int8"}, 1, "cpu"),
        ({"device": "cpu"}, 1, "cpu"),
        ({"device": "cuda"}, 1, "cuda:0"),
        ({"device": "cuda:1"}, 2, "cuda:1"),
    ],
)
def test_the_device_is_the_one_asked_for_or_a_gpu_that_torch_can_use(
    machine: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], count: int, chosen: str
) -> None:
    monkeypatch.setattr(torch, "cuda", Cuda(count))
    assert choose_device(EngineConfig(**options), machine) == chosen  # type: ignore[arg-type]


def test_auto_without_a_driver_does_not_ask_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", None)
    assert choose_device(EngineConfig(), tmp_path) == "cpu"


@pytest.mark.parametrize(
    ("device", "cuda", "words"),
    [
        ("cuda", Cuda(error=NO_CUDA), r"device is cuda, .*reports: Torch not compiled with CUDA enabled$"),
        ("cuda", Cuda(error=RuntimeError("The driver is too old")), "reports: The driver is too old$"),
        ("cuda", Cuda(), "finds no CUDA device$"),
        ("cuda:2", Cuda(2), "device is cuda:2, .* finds 2 CUDA devices, cuda:0 to cuda:1$"),
        ("tpu", Cuda(1), "device is 'tpu'; it must be auto, cpu, cuda or cuda:N"),
        ("cuda:x", Cuda(1), "device is 'cuda:x'"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused_with_what_torch_reports(
    monkeypatch: pytest.MonkeyPatch, device: str, cuda: Cuda, words: str
) -> None:
    monkeypatch.setattr(torch, "cuda", cuda)
    with pytest.raises(InvalidConfig, match=words) as caught:
        choose_device(EngineConfig(device=device))
    assert caught.value.param == "device"


def test_native_on_a_gpu_is_refused_and_auto_takes_torch_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", Cuda(1))
    program = make_program(LLAMA)
    assert choose_executor(program, EngineConfig(device="cuda")) == "torch"
    with pytest.raises(InvalidConfig, match="device is cuda, and the native executor computes on the CPU"):
        choose_executor(program, EngineConfig(device="cuda", executor="native"))


def test_what_is_available_on_a_gpu_is_its_own_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", Cuda(2))
    assert device_available_bytes("cuda:0") == 950
    assert device_available_bytes("cuda:1") == 1900


@pytest.mark.parametrize(
    ("requested", "file_dtype", "capability", "chosen"),
    [
        ("auto", "bfloat16", (8, 0), "bfloat16"),
        ("auto", "float32", (9, 0), "bfloat16"),
        ("auto", "float16", (9, 0), "float16"),
        ("auto", "bfloat16", (7, 5), "float16"),
        ("float32", "float16", (9, 0), "float32"),
        ("float16", "bfloat16", (9, 0), "float16"),
    ],
)
def test_a_gpu_computes_in_sixteen_bits(
    monkeypatch: pytest.MonkeyPatch, requested: str, file_dtype: str, capability: tuple[int, int], chosen: str
) -> None:
    monkeypatch.setattr(torch, "cuda", Cuda(1, capability=capability))
    assert choose_dtype(requested, file_dtype, frozenset(), "cuda:0") == chosen  # type: ignore[arg-type]


def test_a_cache_on_a_device_has_no_memory_of_the_machine() -> None:
    with pytest.raises(InvariantBroken, match="cache 3"):
        DeviceKV(1, 16, "bfloat16").buffers(3)
