"""Models in several GGUF files, as the gguf package splits them."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint.conftest import GgufModel, quantised_model, random_tensors
from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.gguf_split import sibling_names
from headway.checkpoint.gguf_text import read_vocabulary_file
from headway.errors import CorruptCheckpoint, ModelError

NUM_TENSORS = len(random_tensors())


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """One model in files of 5 tensors."""
    GgufModel().write(tmp_path / "m.gguf", 5)
    return sorted(tmp_path.glob("m-*.gguf"))


def patched(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def test_any_part_opens_the_whole_model(parts: list[Path], tmp_path: Path) -> None:
    assert len(parts) == -(-NUM_TENSORS // 5) >= 3
    whole = open_checkpoint(GgufModel().write(tmp_path / "whole.gguf"))
    for path in parts:
        found = open_checkpoint(path)
        assert found.shape == whole.shape
        assert found.text == whole.text
        assert found.weights.shapes() == whole.weights.shapes()
        for name in whole.weights.shapes():
            assert np.array_equal(found.weights.read(name), whole.weights.read(name)), name
            raw, expected = found.weights.raw(name), whole.weights.raw(name)
            assert np.array_equal(raw.data, expected.data), name
            found.weights.release(name)
    assert len({open_checkpoint(path).identity for path in parts}) == 1
    assert read_vocabulary_file(parts[-1]) == read_vocabulary_file(tmp_path / "whole.gguf")


def test_quantised_tensors_of_all_parts_are_read(tmp_path: Path) -> None:
    whole = open_checkpoint(quantised_model().write(tmp_path / "whole.gguf"))
    quantised_model().write(tmp_path / "m.gguf", 3)
    found = open_checkpoint(next(tmp_path.glob("m-00002-of-*.gguf")))
    for name in whole.weights.shapes():
        assert found.weights.type_of(name) == whole.weights.type_of(name)
        assert np.array_equal(found.weights.read(name), whole.weights.read(name)), name


def test_identity_and_changes_are_those_of_every_part(parts: list[Path]) -> None:
    before = open_checkpoint(parts[0])
    patched(parts[2], b"split.count", b"split.counT")
    with pytest.raises(CorruptCheckpoint, match=f"{parts[2].name} has been written to"):
        before.weights.check_unchanged()


def test_missing_parts_are_named(parts: list[Path]) -> None:
    parts[2].unlink()
    with pytest.raises(CorruptCheckpoint, match=rf"{parts[0].name} is part 1 of 3, and {parts[2].name} is not beside"):
        open_checkpoint(parts[0])
    parts[0].unlink()
    with pytest.raises(CorruptCheckpoint, match=rf"{parts[0].name}, {parts[2].name} are not beside it"):
        open_checkpoint(parts[1])


def test_a_part_under_another_name_is_refused(parts: list[Path], tmp_path: Path) -> None:
    renamed = parts[1].rename(tmp_path / "other.gguf")
    with pytest.raises(CorruptCheckpoint, match=r"is part 2 of 3: it has to be named NAME-00002-of-00003.gguf"):
        open_checkpoint(renamed)


def test_parts_that_do_not_belong_together_are_refused(parts: list[Path]) -> None:
    second, third = parts[1].read_bytes(), parts[2].read_bytes()
    parts[2].write_bytes(second)
    with pytest.raises(CorruptCheckpoint, match=r"00003-of-00003.gguf says that it is part 2 of 3"):
        open_checkpoint(parts[0])
    parts[2].write_bytes(third)
    name = next(iter(GgufFile(parts[0]).parts[1].tensors)).encode()
    other = next(name_ for name_ in GgufFile(parts[0]).parts[0].tensors if len(name_) == len(name)).encode()
    patched(parts[1], name, other)
    with pytest.raises(CorruptCheckpoint, match=rf"has the tensor '{other.decode()}', which {parts[0].name} has too"):
        open_checkpoint(parts[0])


def test_a_tensor_too_few_is_seen(parts: list[Path]) -> None:
    key = b"split.tensors.count" + struct.pack("<I", 5)
    patched(parts[0], key + struct.pack("<i", NUM_TENSORS), key + struct.pack("<i", NUM_TENSORS + 1))
    with pytest.raises(CorruptCheckpoint, match=f"have {NUM_TENSORS} tensors; it says {NUM_TENSORS + 1}"):
        open_checkpoint(parts[0])


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("a.gguf", ["a.gguf"]),
        ("b/a-00002-of-00002.gguf", ["b/a-00001-of-00002.gguf", "b/a-00002-of-00002.gguf"]),
        ("a-00003-of-00002.gguf", ["a-00003-of-00002.gguf"]),
        ("a-00000-of-00002.gguf", ["a-00000-of-00002.gguf"]),
        ("a-1-of-2.gguf", ["a-1-of-2.gguf"]),
    ],
)
def test_a_parts_name_says_which_others_there_are(name: str, names: list[str]) -> None:
    assert sibling_names(name) == names


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_a_part_holds_nothing_but_a_model_error_is_raised(parts: list[Path], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(parts))
    original = path.read_bytes()
    changed = bytearray(original)
    at = data.draw(st.integers(0, min(len(original) - 1, 700)))
    changed[at] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 255]))
    path.write_bytes(changed)
    try:
        open_checkpoint(parts[0])
    except ModelError:
        pass
    finally:
        path.write_bytes(original)


def test_of_an_ordinary_file_the_name_says_nothing(tmp_path: Path, write_gguf: Callable[..., Path]) -> None:
    path = write_gguf().rename(tmp_path / "m-00001-of-00002.gguf")
    assert open_checkpoint(path).shape.num_layers == 1
