"""Options, files, labels and threads of predictors, and every way in which they can not be used."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.predictors.options import CORES_VARIABLE, file_inside, num_threads, read_labels, read_options
from headway_wire import PredictorError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    width: int = 3
    kind: str = msgspec.field(default="a", name="class")


def test_options_are_read_by_the_names_that_they_have_outside() -> None:
    assert read_options({"class": "b", "width": 4}, Options) == Options(width=4, kind="b")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "b"}, "no option 'kind'; there are class, width"),
        ({"width": "4"}, "Expected `int`, got `str` - at `$.width`"),
    ],
)
def test_options_that_do_not_fit_are_told_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PredictorError) as caught:
        read_options(options, Options)
    assert words in caught.value.error.message
    assert caught.value.error.kind == "InvalidConfig"


def test_a_file_is_found_in_the_folder_or_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "inside.txt").touch()
    (tmp_path / "outside.txt").touch()
    assert file_inside(tmp_path / "model", "inside.txt", "weights") == tmp_path / "model" / "inside.txt"
    assert file_inside(tmp_path / "model", str(tmp_path / "outside.txt"), "weights") == tmp_path / "outside.txt"
    (tmp_path / "model" / "link.txt").symlink_to(tmp_path / "outside.txt")
    for name in ("../outside.txt", "link.txt"):
        with pytest.raises(PredictorError, match=f"weights is '{name}', which is outside"):
            file_inside(tmp_path / "model", name, "weights")
    with pytest.raises(PredictorError, match="there is no file"):
        file_inside(tmp_path / "model", "absent.txt", "weights")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.txt", "cat\ndog\n"),
        ("labels.json", json.dumps(["cat", "dog"])),
        ("labels.json", json.dumps({"1": "dog", "0": "cat"})),
        ("labels.json", json.dumps({"0": ["n02123045", "cat"], "1": ["n02110185", "dog"]})),
    ],
)
def test_labels_are_read_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_labels(name, tmp_path) == ["cat", "dog"]
    assert read_labels(["a"], tmp_path) == ["a"]
    assert read_labels(None, tmp_path) is None


@pytest.mark.parametrize("text", ["{", '{"1": "dog"}', '"cat"', "3"])
def test_a_file_that_holds_no_labels_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(PredictorError, match=r"labels.json holds no labels"):
        read_labels("labels.json", tmp_path)


def test_threads_are_those_that_were_told_or_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    cores = len(os.sched_getaffinity(0))
    assert num_threads(None) == cores
    assert num_threads(7) == 7
    monkeypatch.setenv(CORES_VARIABLE, "1")
    assert num_threads(None) == 1
    assert num_threads(7) == 7
    for told in ("1000", "0", "many"):
        monkeypatch.setenv(CORES_VARIABLE, told)
        assert num_threads(None) == cores
    with pytest.raises(PredictorError, match="threads is 0"):
        num_threads(0)
