"""Environments: made, found, listed and removed; and a model of tensors that runs in one."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from headway.cli.main import run
from headway.config import CheckpointConfig, ModelConfig, PoolConfig, ServerConfig
from headway.core.infer import InferRequest
from headway.errors import DownloadFailed, InvalidConfig
from headway.service.local import LocalService
from headway.worker import environments
from headway.worker.environment_recipes import RECIPES, packages_for
from headway.worker.environments import (
    RECORD,
    create_environment,
    find_interpreter,
    list_environments,
    remove_environment,
)
from headway_wire.tensors import from_array, to_array

CODE = """
import sys
class Model:
    inputs = {"x": ("FP32", [-1])}
    outputs = {"y": ("FP32", [-1])}
    def predict_tensors(self, arrays):
        return {"y": arrays["x"] * 2}
    def predict(self, value):
        return [sys.prefix, "headway.errors" in sys.modules, sys.modules["numpy"].__file__]
"""


@pytest.fixture(scope="module")
def envs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one environment, as pip makes it."""
    folder = tmp_path_factory.mktemp("envs")
    create_environment("plain", ["typing_extensions"], without=["typing_extensions"], folder=folder)
    return folder


def is_inside(path: str, folder: Path) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


async def test_a_model_runs_in_an_environment_where_headway_is_not(
    envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "headway").mkdir()
    (tmp_path / "headway" / "envs").symlink_to(envs)
    # What the server's own interpreter is told of packages must not reach another.
    monkeypatch.setenv("PYTHONPATH", str(Path(np.__file__).parents[1]))
    (tmp_path / "model.py").write_text(CODE)
    model = ModelConfig(source=str(tmp_path), served_names=("m",), framework="python", interpreter="plain")
    service = LocalService([model], PoolConfig(), ServerConfig(), CheckpointConfig(cache_dir=tmp_path))
    array = np.array([1, 2], np.float32)
    answer = await service.infer(InferRequest(request_id="1", model="m", tensors=[from_array("x", array)]))
    np.testing.assert_array_equal(to_array(answer.tensors[0]), array * 2)
    prefix, has_headway, numpy_file = (await service.infer(InferRequest(request_id="2", model="m", value=1))).value
    await service.aclose()
    assert not has_headway
    assert is_inside(prefix, envs)
    assert is_inside(numpy_file, envs)


def test_it_is_listed_with_what_is_in_it(envs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (made,) = list_environments(envs)
    assert (made.name, made.asked, made.python) == (
        "plain",
        ["typing_extensions"],
        ".".join(map(str, sys.version_info[:3])),
    )
    assert {"numpy", "msgspec"} <= set(made.packages)
    assert not {"headway", "typing_extensions"} & set(made.packages)
    assert run(["env", "list", "--folder", str(envs)]) == 0
    assert capsys.readouterr().out.startswith("plain            Python 3.")


def test_its_name_is_its_python_and_so_are_paths(envs: Path) -> None:
    python = str(envs / "plain" / "bin" / "python")
    assert find_interpreter("plain", envs) == python
    assert find_interpreter(str(envs / "plain")) == python
    assert find_interpreter(sys.executable) == sys.executable
    assert subprocess.run([python, "-c", "import headway"], capture_output=True).returncode == 1


def test_a_name_that_is_taken_stays_as_it_is(envs: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is an environment 'plain' already"):
        create_environment("plain", ["x"], folder=envs)
    assert list_environments(envs)[0].asked == ["typing_extensions"]


def test_what_pip_can_not_install_leaves_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.whl"
    with pytest.raises(DownloadFailed, match=r"pip could not install .*nothing\.whl"):
        create_environment("broken", [str(missing)], folder=tmp_path / "envs")
    assert not (tmp_path / "envs" / "broken").exists()


def test_what_was_not_finished_is_not_used_and_can_be_removed(tmp_path: Path) -> None:
    python = tmp_path / "half" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    with pytest.raises(InvalidConfig, match="'half' was not finished: make it: headway env create half"):
        find_interpreter("half", tmp_path)
    assert list_environments(tmp_path) == []
    remove_environment("half", tmp_path)
    assert not (tmp_path / "half").exists()
    with pytest.raises(InvalidConfig, match="there is no environment 'half'; there is: none"):
        remove_environment("half", tmp_path)


def test_a_record_that_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / RECORD).write_text("{")
    with pytest.raises(InvalidConfig, match="headway env remove odd"):
        list_environments(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "-x", "a b", "x" * 65, "a\n"])
def test_names_can_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match="it must be 1 to 64 letters"):
        find_interpreter(name, tmp_path)
    for act in (lambda: create_environment(name, [], folder=tmp_path), lambda: remove_environment(name, tmp_path)):
        with pytest.raises(InvalidConfig, match="it must be 1 to 64 letters"):
            act()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("interpreter", ["/nonexistent/python", "other"])
def test_a_python_that_there_is_not(tmp_path: Path, interpreter: str) -> None:
    with pytest.raises(InvalidConfig, match="there is no Python at"):
        find_interpreter(interpreter, tmp_path)


def test_a_python_that_makes_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="can not make a virtual environment"):
        create_environment("x", [], python="/bin/false", folder=tmp_path)
    assert not (tmp_path / "x").exists()


def test_a_python_that_is_not_there_and_a_folder_that_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"'x' can not be made in .*No such file.*/nonexistent/python"):
        create_environment("x", [], python="/nonexistent/python", folder=tmp_path)
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="'x' can not be made in"):
        create_environment("x", [], folder=tmp_path / "file")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(environments, "_write", write)
    monkeypatch.setattr(environments, "_run_pip", lambda *arguments: 0)
    with pytest.raises(InvalidConfig, match=r"No space left on device.*nothing was kept"):
        create_environment("x", [], folder=tmp_path)
    assert not (tmp_path / "x").exists()


BUILDER = """#!/bin/sh
mkdir -p "$4"
echo $$ > {pipe}
exec sleep 600
"""
CREATE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
from headway.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "exit_code", "stays"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGKILL, -9, True)],
)
def test_what_is_interrupted_goes_on_nowhere_and_leaves_nothing_that_counts(
    tmp_path: Path, number: int, exit_code: int, stays: bool
) -> None:
    pipe, builder = tmp_path / "pipe", tmp_path / "python"
    os.mkfifo(pipe)
    builder.write_text(BUILDER.format(pipe=pipe))
    builder.chmod(0o755)
    folder = tmp_path / "envs"
    command = [sys.executable, "-c", CREATE, "env", "create", "x", "onnx", "--python", str(builder)]
    with subprocess.Popen([*command, "--folder", str(folder)], stderr=subprocess.DEVNULL) as process:
        child = psutil.Process(int(pipe.read_text()))
        assert (folder / "x").is_dir()
        process.send_signal(number)
        assert process.wait(30.0) == exit_code
    psutil.wait_procs([child], 30.0)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    # Of a killed one the folder stays; it is no environment, and the next build clears it.
    assert (folder / "x").is_dir() == stays
    assert list_environments(folder) == []


def test_recipes_are_packages_by_a_name() -> None:
    assert packages_for("onnx", []) == (list(RECIPES["onnx"]), [])
    assert packages_for("mine", ["sklearn", "xgboost>=3"]) == (["scikit-learn==1.9.1", "xgboost>=3"], [])
    assert packages_for("mine", ["vllm"])[1] == ["torchvision", "torchaudio", "torchcodec"]
    with pytest.raises(InvalidConfig, match="there is no recipe 'mine': name packages, or one of onnx, sklearn"):
        packages_for("mine", [])


def test_the_command_line_says_what_is_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "create", "mine", "--folder", str(tmp_path)]) == 2
    assert "there is no recipe 'mine'" in capfd.readouterr().err
    assert run(["env", "remove", "mine", "--folder", str(tmp_path)]) == 2
    assert run(["env", "create", "x", "onnx", "--python", "/bin/false", "--folder", str(tmp_path)]) == 2
    assert "can not make a virtual environment" in capfd.readouterr().err
