import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headway.checkpoint.gguf_reader
from headway.checkpoint.checkpoint import open_checkpoint
from headway.checkpoint.ggml_types import READABLE_TYPES, REMOVED_TYPES, find_type
from headway.checkpoint.gguf import GgufFile
from headway.checkpoint.mapping import MappedFile
from headway.checkpoint.safetensors import SafetensorsFile
from headway.errors import CorruptCheckpoint, HeadwayError, ModelError, UnsupportedModel
from oracles import demo_model, llama_cpp_sources


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def whole(
    entries: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    *,
    data: int = 0,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_entries) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


def open_bytes(folder: Path, data: bytes) -> GgufFile:
    path = folder / "file.gguf"
    path.write_bytes(data)
    return GgufFile(path)


def test_every_kind_of_metadata_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "é漢😀")
    writer.add_array("texts", ["a", "", "é"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    found = dict(GgufFile(path).metadata)

    assert {key: found[key] for key in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")} == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
    }
    assert (found["f32"], found["f64"], found["yes"], found["text"]) == (0.5, 0.1, True, "é漢😀")
    assert found["texts"] == ["a", "", "é"]
    assert found["numbers"].tolist() == [1, 2, 3]
    assert found["flags"].tolist() == [True, False]


def test_metadata_and_tensors_equal_the_gguf_packages(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(tensors={"blk.0.ffn_down.weight": (np.ones((8, 64), np.float32), Type.Q4_1)})
    file, oracle = GgufFile(path), gguf.GGUFReader(path)
    for key, oracle_field in oracle.fields.items():
        if not key.startswith("GGUF."):
            value = file.metadata[key]
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == oracle_field.contents(), key
    assert [(t.name, t.start, t.num_bytes, t.type.name) for t in file.tensors.values()] == [
        (t.name, t.data_offset, t.n_bytes, t.tensor_type.name) for t in oracle.tensors
    ]


def test_the_demo_models_file_is_read_whole() -> None:
    path = demo_model()
    file = GgufFile(path)
    assert len(file.metadata) == 33
    assert file.metadata["tokenizer.ggml.tokens"][1:3] == ["<|im_start|>", "<|im_end|>"]
    kinds = [tensor.type.name for tensor in file.tensors.values()]
    assert (len(kinds), kinds.count("Q4_1"), kinds.count("F32"), kinds.count("Q8_0")) == (272, 210, 61, 1)
    assert max(tensor.start + tensor.num_bytes for tensor in file.tensors.values()) == path.stat().st_size
    raw = np.memmap(path, np.uint8, "r")
    for name in ("token_embd.weight", "blk.7.attn_k.weight", "blk.29.ffn_norm.weight"):
        tensor = file.tensors[name]
        data = np.asarray(raw[tensor.start : tensor.start + tensor.num_bytes])
        expected = gguf.dequantize(data.reshape(*tensor.shape[:-1], -1), Type[tensor.type.name])
        np.testing.assert_array_equal(file.read(name).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("read_bytes", [1, 7, 4096])
def test_a_header_that_is_read_bit_by_bit_is_the_same(
    write_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    path = write_gguf()
    whole_file = GgufFile(path)
    monkeypatch.setattr(headway.checkpoint.gguf_reader, "_READ_BYTES", read_bytes)
    file = GgufFile(path)
    assert file.tensors == whole_file.tensors
    assert file.metadata.keys() == whole_file.metadata.keys()
    for key, value in file.metadata.items():
        np.testing.assert_array_equal(value, whole_file.metadata[key])


@pytest.mark.parametrize("opened", [GgufFile, SafetensorsFile])
def test_a_file_that_shrinks_while_its_header_is_read_kills_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: type[GgufFile] | type[SafetensorsFile]
) -> None:
    path = tmp_path / "file"
    data = whole([entry("k", 8, text("x" * 100_000))])
    path.write_bytes(data if opened is GgufFile else struct.pack("<Q", len(data)) + data)
    read = MappedFile.read

    def read_and_cut(self: MappedFile, start: int, num_bytes: int) -> bytes:
        os.truncate(path, 100)
        return read(self, start, num_bytes)

    monkeypatch.setattr(headway.checkpoint.gguf_reader, "_READ_BYTES", 50)
    monkeypatch.setattr(MappedFile, "read", read_and_cut)
    with pytest.raises(CorruptCheckpoint, match=r"shrunk from \d+ to 100 bytes"):
        opened(path)


def test_every_vocabulary_of_llama_cpp_opens() -> None:
    paths = sorted((llama_cpp_sources() / "models").glob("ggml-vocab-*.gguf"))
    assert len(paths) > 15
    for path in paths:
        file = GgufFile(path)
        assert len(file.metadata["tokenizer.ggml.tokens"]) > 20_000


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1])
def test_dequantised_tensors_equal_the_gguf_packages_bit_for_bit(tmp_path: Path, kind: Type) -> None:
    path = tmp_path / "types.gguf"
    random = np.random.default_rng(1).standard_normal((6, 96), np.float32)
    random[0, :32] = 0.0
    random[1, :32] *= 1e-9  # scales below float16's normal range
    random[2, :32] *= 1e4
    data = gguf.quantize(random, kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("odd", np.zeros(3, np.float32))
    writer.add_tensor("w", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    values = GgufFile(path).read("w")

    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    assert values.flags.aligned
    np.testing.assert_array_equal(values.view(np.uint32), gguf.dequantize(data, kind).view(np.uint32))


def test_the_table_of_types_is_ggmls() -> None:
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        found = find_type(int(kind))
        assert found is not None
        assert (found.name, found.block_size, found.block_bytes) == (kind.name, block_size, block_bytes)
    assert not set(REMOVED_TYPES) & {int(kind) for kind in Type}


ONE_F32 = info("t", (8,), 0, 0)
WRONG_BYTES = {
    "empty": (b"", "is empty"),
    "three bytes": (b"GGU", "starts with"),
    "other magic": (whole(magic=b"PK\x03\x04"), "starts with"),
    "version 0": (whole(version=0), "version 0"),
    "version 99": (whole(version=99), "version 99"),
    "cut in the version": (b"GGUF\x03", "cut short"),
    "cut in the counts": (b"GGUF\x03\0\0\0\x01", "cut short"),
    "more tensors than bytes": (whole(counts=(2**63, 0)), "cannot be in the"),
    "more entries than bytes": (whole(counts=(0, 2**62)), "cannot be in the"),
    "key over the end": (whole([struct.pack("<Q", 2**63)], counts=(0, 1)) + bytes(40), "cannot be in the"),
    "no key": (whole([entry("", 4, bytes(4))]) + bytes(8), "key of 0"),
    "key that is not UTF-8": (whole([struct.pack("<Q", 1) + b"\xff" + bytes(8)]) + bytes(8), "not UTF-8"),
    "string that is not UTF-8": (whole([entry("k", 8, struct.pack("<Q", 1) + b"\xff")]), "not UTF-8"),
    "key twice": (whole([entry("k", 4, bytes(4))] * 2), "'k' is there twice"),
    "value of an unknown type": (whole([entry("k", 13, bytes(4))]), "type number 13"),
    "truth value of 2": (whole([entry("k", 7, b"\x02")]), "truth value"),
    "array longer than the file": (whole([entry("k", 9, struct.pack("<IQ", 4, 2**62))]), "cannot be in the"),
    "array of an unknown type": (whole([entry("k", 9, struct.pack("<IQ", 77, 1))]), "type number 77"),
    "truth values of 3": (whole([entry("k", 9, struct.pack("<IQ", 7, 2) + b"\x01\x03")]), "neither 0 nor 1"),
    "string in an array over the end": (
        whole([entry("k", 9, struct.pack("<IQ", 8, 2) + text("a") + struct.pack("<Q", 2**64 - 1))]),
        "over the end",
    ),
    "array of strings that is not UTF-8": (
        whole([entry("k", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xc3")]),
        "not UTF-8",
    ),
    "alignment of 24": (whole([entry("general.alignment", 4, struct.pack("<I", 24))]), "power of two"),
    "alignment of 0": (whole([entry("general.alignment", 4, bytes(4))]), "power of two"),
    "alignment as text": (whole([entry("general.alignment", 8, text("32"))]), "power of two"),
    "tensor twice": (whole(tensors=[ONE_F32, info("t", (8,), 0, 32)], data=64), "'t' is there twice"),
    "tensor without a name": (whole(tensors=[info("", (8,), 0, 0) + bytes(1)], data=64), "name of 0"),
    "no dimension": (whole(tensors=[info("t", (), 0, 0) + bytes(8)], data=64), "0 dimensions"),
    "five dimensions": (whole(tensors=[info("t", (1,) * 5, 0, 0)], data=64), "5 dimensions"),
    "dimension of 0": (whole(tensors=[info("t", (8, 0), 0, 0)], data=64), "shape"),
    "dimensions that overflow 64 bits": (whole(tensors=[info("t", (2**33, 2**33), 0, 0)], data=64), "cut short"),
    "rows that are no whole blocks": (whole(tensors=[info("t", (33,), 8, 0)], data=64), "blocks of 32"),
    "offset off the alignment": (whole(tensors=[info("t", (8,), 0, 4)], data=64), "alignment 32"),
    "offset over the end": (whole(tensors=[info("t", (8,), 0, 2**63)], data=64), "cut short"),
    "data cut short": (whole(tensors=[ONE_F32], data=31), "cut short"),
    "tensors that overlap": (whole(tensors=[info("a", (16,), 0, 0), info("b", (8,), 0, 32)], data=64), "overlap"),
}
NOT_SUPPORTED = {
    "version 1": (whole(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
    "GGJT": (whole(magic=b"tjgg"), "GGJT"),
    "array of arrays": (whole([entry("k", 9, struct.pack("<IQ", 9, 1) + bytes(12))]), "array of arrays"),
    "a type that ggml removed": (whole(tensors=[info("t", (32,), 31, 0)], data=64), "Q4_0_4_4"),
    "an unknown type": (whole(tensors=[info("t", (32,), 1000, 0)], data=64), "type number 1000"),
}


@pytest.mark.parametrize("case", WRONG_BYTES)
def test_bytes_that_contradict_themselves_are_corrupt(tmp_path: Path, case: str) -> None:
    data, words = WRONG_BYTES[case]
    with pytest.raises(CorruptCheckpoint, match=words):
        open_bytes(tmp_path, data)


@pytest.mark.parametrize("case", NOT_SUPPORTED)
def test_what_is_not_supported_is_named(tmp_path: Path, case: str) -> None:
    data, words = NOT_SUPPORTED[case]
    with pytest.raises(UnsupportedModel, match=words):
        open_bytes(tmp_path, data)


def test_a_type_that_is_not_read_is_refused_by_name_when_its_tensor_is_wanted(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, whole(tensors=[info("t", (256,), 23, 0)], data=136))
    with pytest.raises(UnsupportedModel, match=r"type IQ4_XS .*'t'.*" + ", ".join(READABLE_TYPES)):
        file.read("t")


def test_a_folder_or_nothing_in_the_place_of_a_file_is_corrupt(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(CorruptCheckpoint, match="cannot be read"):
            GgufFile(path)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error_and_not_a_dead_process(tmp_path: Path) -> None:
    data = whole(tensors=[info("t", (4096,), 0, 0)], data=16384)
    file = open_bytes(tmp_path, data)
    with (tmp_path / "file.gguf").open("r+b") as written:
        written.truncate(200)
    with pytest.raises(CorruptCheckpoint, match="shrunk"):
        file.read("t")


HEADER_BYTES = 2300


def open_and_read_all(path: Path) -> None:
    """All that loading does to a file's bytes."""
    checkpoint = open_checkpoint(path)
    for name in checkpoint.weights.shapes():
        checkpoint.weights.read(name)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_bytes_are_nothing_but_a_model_error_is_raised(
    write_gguf: Callable[..., Path], tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "whole.gguf"
    if not path.exists():
        write_gguf().rename(path)
    original = path.read_bytes()
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, HEADER_BYTES - 1))
        special = st.sampled_from([0, 1, 4, 7, 8, 9, 31, 32, 127, 128, 254, 255])
        width = data.draw(st.sampled_from([1, 1, 4, 8]))
        new = data.draw(st.one_of(special, st.integers(0, 255)))
        changed[at : at + width] = bytes([new] * len(changed[at : at + width]))
    cut = data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))
    mutant = tmp_path / "mutant.gguf"
    mutant.write_bytes(changed[:cut])
    try:
        open_and_read_all(mutant)
    except HeadwayError as error:
        assert isinstance(error, ModelError)  # noqa: PT017


def test_every_truncation_of_a_file_is_a_model_error(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    original = write_gguf().read_bytes()
    open_bytes(tmp_path, original)
    for length in range(0, len(original), 7):
        with pytest.raises(ModelError):
            open_bytes(tmp_path, original[:length])
