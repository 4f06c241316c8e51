"""NVML's answers, by a stand-in for its module."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from headway.observe.gpus import NoGpus, NvmlGpus, find_gpus
from headway.testing.fake_gpus import FakeGpus


class NVMLError(Exception):
    pass


@dataclass
class Running:
    pid: int
    usedGpuMemory: int | None


def fake_nvml(sizes: list[int], running: dict[int, list[Running]]) -> Any:
    def processes(handle: int) -> list[Running]:
        if handle not in running:
            raise NVMLError("no permission")
        return running[handle]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlDeviceGetCount=lambda: len(sizes),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=sizes[handle]),
        nvmlDeviceGetComputeRunningProcesses=processes,
    )


def test_sizes_and_what_processes_take_on_each() -> None:
    running = {0: [Running(7, 100), Running(8, 50), Running(9, 1)], 1: [Running(7, None)]}
    gpus = NvmlGpus(fake_nvml([1000, 2000, 3000], running))
    assert list(gpus.total_bytes()) == [1000, 2000, 3000]
    # The second does not say how much, the third does not answer.
    assert gpus.process_bytes([7, 8]) == {0: 150}


def test_without_a_driver_there_are_none(tmp_path: Any) -> None:
    gpus = find_gpus(tmp_path)
    assert isinstance(gpus, NoGpus)
    assert (list(gpus.total_bytes()), gpus.process_bytes([1])) == ([], {})


def test_the_fake_answers_as_they_do() -> None:
    gpus = FakeGpus(10, 20)
    gpus.used[1] = {5: 3, 6: 4}
    assert gpus.process_bytes([5, 6, 7]) == {1: 7}
