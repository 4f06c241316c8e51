import json
import os
import socket
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.cli import checks, doctor
from headway.cli.checks import (
    Check,
    check_cache,
    check_demo,
    check_executors,
    check_extras,
    check_gpus,
    check_memory,
    check_module,
    check_port,
    check_processor,
    check_python,
    check_settings,
    find_port_holder,
)
from headway.cli.main import run
from headway.observe.gpus import open_gpus
from headway.testing.fake_gpus import FakeGpus

GIB = 1 << 30


def test_the_processor_line_tells_cores_and_what_computing_can_use() -> None:
    check = check_processor({"avx2", "avx512_bf16", "fpu", "vmx", "amx_bf16", "aes"}, 3, 8)
    assert check.detail == "3 of 8 cores usable; instruction sets: amx_bf16, avx2, avx512_bf16"
    assert check_processor(frozenset(), 1, 1).detail.endswith("none that matter here")
    assert check_python().status == "ok"


def test_gpus_are_told_or_what_is_missing_to_count_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_gpus(open_gpus(tmp_path)) == Check("gpus", "ok", "none (no NVIDIA driver)")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    absent = check_gpus(open_gpus(tmp_path))
    assert (absent.status, absent.advice) == ("warning", "pip install 'headway[gpu]'")
    assert "nvidia-ml-py is not installed" in absent.detail
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)

    class NVMLError(Exception):
        pass

    def fail() -> None:
        raise NVMLError("Driver/library version mismatch")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=NVMLError, nvmlInit=fail))
    broken = check_gpus(open_gpus(tmp_path))
    assert (broken.status, "version mismatch" in broken.detail, "nvidia-smi" in broken.advice) == (
        "warning",
        True,
        True,
    )
    assert check_gpus(FakeGpus(80 << 30, 24 << 30)).detail == "cuda:0 80.0 GiB, cuda:1 24.0 GiB"


def test_every_extra_is_told_and_what_is_missing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(checks.EXTRAS) == set(project["optional-dependencies"]) - {"dev"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("s3fs", "onnx") else name)
    check = check_extras()
    assert check.status == "ok"
    assert check.detail.endswith("gpu; not installed: onnx, s3 (pip install 'headway[NAME]')")


@pytest.mark.parametrize(("available", "status"), [(GIB, "ok"), (GIB - 1, "warning")])
def test_memory_is_enough_for_the_demo_or_a_warning(available: int, status: str) -> None:
    assert check_memory(available, 8 * GIB).status == status


def test_the_cache_folder_need_not_be_there_but_must_be_makeable(tmp_path: Path) -> None:
    check = check_cache(tmp_path / "a" / "b")
    assert check.status in ("ok", "warning")  # a full disk of the machine is a warning
    assert "holds 0 B" in check.detail
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_bytes(b"x" * 2048)
    assert check_cache(tmp_path / "file").status == "missing"
    assert check_cache(tmp_path / "file" / "under").status == "missing"
    assert "holds 2.0 KiB" in check_cache(tmp_path).detail


def test_a_cache_folder_without_write_permission_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere: what the system tells anyone else
        monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert check_cache(tmp_path / "cache").status == "missing"


def test_a_module_that_is_not_there_or_breaks_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_module_for_doctor.py").write_text("raise ImportError('undefined symbol')")
    absent = check_module("absent_module_for_doctor", needed_for="x", advice="pip install it", is_needed=True)
    assert absent == Check("absent_module_for_doctor", "missing", "not installed; needed for x", "pip install it")
    broken = check_module("broken_module_for_doctor", needed_for="x", advice="again", is_needed=False)
    assert (broken.status, broken.detail) == ("warning", "does not load: ImportError: undefined symbol")
    assert check_module("json", needed_for="x", advice="", is_needed=True).status == "ok"


def test_a_port_that_is_taken_is_told_with_who_holds_it() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        check = check_port("127.0.0.1", port, find_port_holder)
        assert check.status == "missing"
        assert f"(process {os.getpid()})" in check.detail
        assert "taken by another program" in check_port("127.0.0.1", port, lambda port: None).detail
    assert check_port("127.0.0.1", port, find_port_holder).status == "ok"
    assert check_port("203.0.113.7", port, find_port_holder).status == "missing"  # not an address of this machine


def test_settings_that_serve_would_refuse_are_missing_and_misspelt_ones_a_warning() -> None:
    assert check_settings("--port is 'x'", []).status == "missing"
    assert check_settings(None, ["HEADWAY_PROT is no setting"]).status == "warning"
    assert check_settings(None, []).status == "ok"
    assert check_demo(True).status == "ok"
    assert check_demo(False).status == "warning"


def test_doctor_prints_json_and_exits_with_1_only_if_something_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Check("a", "ok", "fine"), Check("b", "warning", "hm", "do it")]
    monkeypatch.setattr(doctor, "examine", lambda flags, config: found)
    assert run(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "name": "b",
        "status": "warning",
        "detail": "hm",
        "advice": "do it",
    }
    found.append(Check("c", "missing", "none", "get it"))
    assert run(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "missing  c  none -> get it"


def test_doctor_examines_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_MAX_NUM_SEQS", "many")
    monkeypatch.setenv("HEADWAY_THREAD", "1")
    assert run(["doctor", "--json", "--port", "0"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert set(checks) == {
        "python",
        "processor",
        "memory",
        "cache",
        "demo model",
        "formats",
        "native",
        "executors",
        "gpus",
        "extras",
        "port",
        "settings",
    }
    assert checks["executors"]["detail"].startswith("native (")
    assert "HEADWAY_MAX_NUM_SEQS is 'many'" in checks["settings"]["detail"]
    assert "Q4_1" in checks["formats"]["detail"]
    assert "llama" in checks["formats"]["detail"]


def test_the_executors_are_told_with_their_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_executors()
    assert found.status == "ok"
    assert found.detail.startswith("native (")
    assert "plain" in found.detail
    assert found.detail.endswith(", torch")
    monkeypatch.setenv("HEADWAY_ISA", "plain")
    assert "native (plain, of plain" in check_executors().detail
    monkeypatch.setenv("HEADWAY_ISA", "mmx")
    wrong = check_executors()
    assert (wrong.status, "'mmx'" in wrong.detail) == ("missing", True)


def test_a_default_install_has_no_torch_and_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    found = check_executors()
    assert (found.status, found.advice) == ("ok", "")
    assert "torch is not installed" in found.detail
