"""NVML's answers, by a stand-in for its module that knows what its documentation says of each call."""

import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.observe.gpus import NoGpus, NvmlGpus, find_gpus, has_driver
from headway.testing.fake_gpus import FakeGpus


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Running:
    pid: int
    usedGpuMemory: int | None


@dataclass
class Gpu:
    """A device, or an instance of one."""

    total: int = 0
    reserved: int | None = None
    """None: a driver before memory of version 2."""
    running: Sequence[Running] | None = ()
    """None: no permission."""
    uuid: str = ""
    instances: list["Gpu | None"] = field(default_factory=list)
    """In MIG mode; None: a place without one."""
    is_mig: bool | None = None
    """None: the device has no such mode."""
    is_lost: bool = False


class Nvml:
    """The functions that are called, over these GPUs; each raises where a GPU has fallen off."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._there(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        every = [*self.gpus, *(it for gpu in self.gpus for it in gpu.instances if it is not None)]
        for gpu in every:
            if gpu.uuid == uuid:
                return self._there(gpu)
        raise NVMLError("not found")

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        if gpu.is_mig is None:
            raise NVMLError("not supported")
        return [int(gpu.is_mig), int(gpu.is_mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return len(gpu.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, index: int) -> Gpu:
        instance = gpu.instances[index]
        if instance is None:
            raise NVMLError("not found")
        return instance

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu, version: int | None = None) -> Any:
        self._there(gpu)
        if not gpu.total or (version is not None and gpu.reserved is None):
            raise NVMLError("not supported")
        return SimpleNamespace(total=gpu.total, **({} if version is None else {"reserved": gpu.reserved}))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> Sequence[Running]:
        if self._there(gpu).running is None:
            raise NVMLError("no permission")
        return gpu.running or ()

    def _there(self, gpu: Gpu) -> Gpu:
        if gpu.is_lost:
            raise NVMLError("GPU is lost")
        return gpu


def test_sizes_and_what_processes_take_on_each() -> None:
    first = Gpu(1000, running=[Running(7, 100), Running(8, 50), Running(9, 1)])
    # The second does not say how much, the third may not be asked.
    gpus = NvmlGpus(Nvml(first, Gpu(2000, running=[Running(7, None)]), Gpu(3000, running=None)))
    assert list(gpus.total_bytes()) == [1000, 2000, 3000]
    assert gpus.process_bytes([7, 8]) == {0: 150}
    assert gpus.process_bytes([]) == {}


def test_what_the_driver_keeps_for_itself_is_nobody_s() -> None:
    assert list(NvmlGpus(Nvml(Gpu(1000, reserved=50))).total_bytes()) == [950]


def test_one_that_shares_the_machine_s_memory_does_not_say() -> None:
    assert list(NvmlGpus(Nvml(Gpu(0), Gpu(1000))).total_bytes()) == [0, 1000]


def test_one_that_is_lost_keeps_its_number() -> None:
    gpus = NvmlGpus(Nvml(Gpu(1000, is_lost=True), Gpu(2000, running=[Running(7, 5)])))
    assert list(gpus.total_bytes()) == [0, 2000]
    assert gpus.process_bytes([7]) == {1: 5}


def test_one_that_falls_off_later_has_and_takes_nothing() -> None:
    gpu = Gpu(1000, running=[Running(7, 5)])
    gpus = NvmlGpus(Nvml(gpu))
    assert gpus.process_bytes([7]) == {0: 5}
    gpu.is_lost = True
    assert (list(gpus.total_bytes()), gpus.process_bytes([7])) == ([0], {})


def test_of_a_divided_one_the_first_instance_counts() -> None:
    small = Gpu(200, reserved=1, running=[Running(7, 30)])
    divided = Gpu(1000, running=None, is_mig=True, instances=[None, small, Gpu(300)])
    whole = Gpu(500, is_mig=False)
    gpus = NvmlGpus(Nvml(divided, whole))
    assert list(gpus.total_bytes()) == [199, 500]
    assert gpus.process_bytes([7]) == {0: 30}


def test_a_divided_one_without_instances_has_nothing() -> None:
    gpus = NvmlGpus(Nvml(Gpu(1000, is_mig=True, instances=[None, None])))
    assert (list(gpus.total_bytes()), gpus.process_bytes([7])) == ([0], {})


@pytest.mark.parametrize(
    ("visible", "sizes"),
    [
        (None, [100, 200, 300]),
        ("2,0", [300, 100]),
        (" 1 ", [200]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [200]),
        ("1,9,0", [200]),
        ("GPU-b", [200]),
        ("MIG-c1,0", [30, 100]),
        ("GPU-x,1", [0, 200]),
    ],
)
def test_cuda_s_numbers_are_those_of_the_visible_ones(visible: str | None, sizes: list[int]) -> None:
    instance = Gpu(30, uuid="MIG-c1")
    gpus = NvmlGpus(Nvml(Gpu(100), Gpu(200, uuid="GPU-b"), Gpu(300, uuid="GPU-c", instances=[instance])), visible)
    assert list(gpus.total_bytes()) == sizes


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    gpus = find_gpus(tmp_path)
    assert isinstance(gpus, NoGpus)
    assert (list(gpus.total_bytes()), gpus.process_bytes([1])) == ([], {})


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A root that has one."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert has_driver(tmp_path)
    return tmp_path


def test_a_driver_without_the_library_is_told_of(
    driver: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert isinstance(find_gpus(driver), NoGpus)
    assert "nvidia-ml-py is not installed" in caplog.text


@pytest.mark.parametrize("fault", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_does_not_answer_is_told_of(
    driver: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    def fail() -> None:
        raise NVMLError("driver not loaded")

    module: Any = Nvml(Gpu(1000))
    module.nvmlInit = lambda: None
    setattr(module, fault, fail)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert isinstance(find_gpus(driver), NoGpus)
    assert "driver not loaded" in caplog.text


def test_the_machine_s_own_are_found(
    driver: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = Nvml(Gpu(1000), Gpu(2000))
    module.nvmlInit = lambda: None
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert list(find_gpus(driver).total_bytes()) == [2000]
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


def test_the_fake_answers_as_they_do() -> None:
    gpus = FakeGpus(10, 20)
    gpus.used[1] = {5: 3, 6: 4}
    assert gpus.process_bytes([5, 6, 7]) == {1: 7}
