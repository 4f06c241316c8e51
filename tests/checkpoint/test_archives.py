"""Archives: what is in them comes out once; those that are made to do harm leave nothing behind."""

import gzip
import io
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from headway.checkpoint import archives
from headway.checkpoint.archives import is_archive, unpack
from headway.checkpoint.progress import silent
from headway.errors import CorruptCheckpoint, UnsupportedModel

MiB = 1024**2
Files = Sequence[tuple[str, bytes]]


def make_zip(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def make_tar(path: Path, files: Files) -> Path:
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def open_archive(path: Path, tmp_path: Path, max_bytes: int = 64 * MiB) -> Path:
    return unpack(path, tmp_path / "cache", max_bytes, silent)


def left_in(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.name != ".lock" and not path.is_dir()]


MAKERS: list[tuple[str, Callable[[Path, Files], Path]]] = [
    ("a.zip", make_zip),
    *((f"a.{ending}", make_tar) for ending in ("tar", "tar.gz", "tgz", "tar.bz2", "tar.xz")),
]
both = pytest.mark.parametrize(("name", "make"), MAKERS[:2])


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_a_folder_comes_out_as_it_went_in(tmp_path: Path, name: str, make: Callable[[Path, Files], Path]) -> None:
    files = [("model/config.json", b"{}"), ("model/1/weights.bin", bytes(range(256)) * 1000), ("model/1/empty", b"")]
    found = open_archive(make(tmp_path / name, files), tmp_path)
    assert found.name == "model"
    assert {(str(path.relative_to(found)), path.read_bytes()) for path in found.rglob("*") if path.is_file()} == {
        (name.removeprefix("model/"), content) for name, content in files
    }
    assert open_archive(tmp_path / name, tmp_path) == found


@both
def test_a_file_that_is_alone_is_what_the_archive_is(
    tmp_path: Path, name: str, make: Callable[[Path, Files], Path]
) -> None:
    assert open_archive(make(tmp_path / name, [("a/b/tiny.gguf", b"GGUF")]), tmp_path).name == "tiny.gguf"


@both
def test_nothing_that_comes_out_can_be_run(tmp_path: Path, name: str, make: Callable[[Path, Files], Path]) -> None:
    found = open_archive(make(tmp_path / name, [("a", b"1"), ("b", b"2")]), tmp_path)
    assert not (found / "a").stat().st_mode & 0o111


@both
@pytest.mark.parametrize("member", ["../x", "a/../../x", "/etc/x", "a\\..\\x", "C:/x", "a/../x", ".."])
def test_a_name_that_leads_out_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path, Files], Path], member: str
) -> None:
    archive = make(tmp_path / name, [("good", b"1"), (member, b"2")])
    with pytest.raises(CorruptCheckpoint, match="leads out"):
        open_archive(archive, tmp_path)
    assert not left_in(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {name, "cache"}


@both
@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a")], ids=["same", "dot", "below a file", "above"]
)
def test_what_is_there_twice_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path, Files], Path], names: tuple[str, str]
) -> None:
    with pytest.raises(CorruptCheckpoint):
        open_archive(make(tmp_path / name, [(each, b"1") for each in names]), tmp_path)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_of_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(CorruptCheckpoint, match="link or a device"):
        open_archive(tmp_path / "a.tar", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_not_read(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 64 * MiB
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(header.tobuf() + bytes(64 * MiB))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match="header has 67108864 bytes"):
            open_archive(tmp_path / "a.tar.gz", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 32 * MiB
    finally:
        tracemalloc.stop()


def test_links_of_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(CorruptCheckpoint, match="link or a device"):
        open_archive(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize(("name", "make"), [("a.zip", make_zip), ("a.tar.gz", make_tar), ("a.tar.xz", make_tar)])
def test_a_bomb_is_stopped_at_the_ratio(tmp_path: Path, name: str, make: Callable[[Path, Files], Path]) -> None:
    archive = make(tmp_path / name, [("zeros", bytes(40 * MiB))])
    assert archive.stat().st_size < 40 * MiB / archives.MAX_RATIO
    with pytest.raises(CorruptCheckpoint, match="times the archive's size"):
        open_archive(archive, tmp_path)
    assert not left_in(tmp_path)


def test_many_small_bombs_are_counted_together(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", [(f"zeros{i}", bytes(4 * MiB)) for i in range(8)])
    with pytest.raises(CorruptCheckpoint, match="zeros4"):
        open_archive(archive, tmp_path)


def test_what_a_header_says_of_a_size_is_not_believed(tmp_path: Path) -> None:
    data = zlib.compress(bytes(40 * MiB), 9)[2:-4]
    header = (
        struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, zlib.crc32(bytes(40 * MiB)), len(data), 10, 1, 0) + b"a"
    )
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(data), 10, 1, 0, 0, 0, 0, 0, 0) + b"a"
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(header) + len(data), 0)
    (tmp_path / "a.zip").write_bytes(header + data + entry + end)
    with pytest.raises(CorruptCheckpoint):
        open_archive(tmp_path / "a.zip", tmp_path)
    assert not left_in(tmp_path)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 10)
    archive = make_zip(tmp_path / "a.zip", [(f"{i}", b"") for i in range(11)])
    with pytest.raises(CorruptCheckpoint, match="10"):
        open_archive(archive, tmp_path)


@both
@pytest.mark.parametrize("names", [[f"{i}/" for i in range(11)], ["/".join("abcdefghijk/")], ["a/b/c/d/e/f/g/h/i/j/k"]])
def test_folders_count_as_files_do(
    tmp_path: Path, name: str, make: Callable[[Path, Files], Path], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 10)
    if name == "a.tar":
        with tarfile.open(tmp_path / name, "w") as archive:
            for each in names:
                member = tarfile.TarInfo(each)
                member.type = tarfile.DIRTYPE if each.endswith("/") else tarfile.REGTYPE
                archive.addfile(member)
    else:
        make(tmp_path / name, [(each, b"") for each in names])
    with pytest.raises(CorruptCheckpoint, match=r"more than an archive may have \(10\)"):
        open_archive(tmp_path / name, tmp_path)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_byte_that_was_changed_is_found_in_a_zip(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("a", random.Random(0).randbytes(100_000))
    check_changed_byte_is_found(tmp_path / "a.zip", tmp_path)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_a_byte_that_was_changed_is_found_in_a_tar(tmp_path: Path, name: str) -> None:
    check_changed_byte_is_found(make_tar(tmp_path / name, [("a", random.Random(0).randbytes(100_000))]), tmp_path)


def check_changed_byte_is_found(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[50_000] ^= 255
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint):
        open_archive(path, tmp_path)
    assert not left_in(tmp_path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE])
def test_a_size_below_zero_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 4 + struct.pack(">q", -512)
    header[156:157] = kind
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:512]))
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(CorruptCheckpoint, match="-512 bytes"):
        open_archive(tmp_path / "a.tar", tmp_path)


def test_much_behind_the_last_member_is_not_read(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "a.tar.gz", [("a", b"1")])
    with gzip.open(path, "ab") as file:
        file.write(bytes(40 * MiB))
    with pytest.raises(CorruptCheckpoint, match="behind its last member"):
        open_archive(path, tmp_path)


@pytest.mark.parametrize("is_zip64", [False, True])
def test_a_zip_s_list_that_would_fill_the_memory_is_not_read(tmp_path: Path, is_zip64: bool) -> None:
    """200,000 members of a name of one letter, in 9 MB: ten times that, once they are read."""
    member = b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    directory = member * 200_000
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), 0, 0)
    if is_zip64:
        record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(directory), 0)
        locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(directory), 1)
        end = record + locator + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    (tmp_path / "a.zip").write_bytes(directory + end)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match=f"list of members has {len(directory)} bytes, at most"):
            open_archive(tmp_path / "a.zip", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 8 * MiB
    finally:
        tracemalloc.stop()


def test_as_many_members_as_there_may_be_are_listed(tmp_path: Path) -> None:
    """With names as long as those of real folders."""
    names = [f"{'a-folder-of-some-length/' * 4}{number:06}.safetensors" for number in range(archives.MAX_FILES - 4)]
    archive = make_zip(tmp_path / "a.zip", [(name, b"") for name in names])
    archives._Unpacking(archive, tmp_path, MiB, silent)._check_directory()


def test_memory_that_an_archive_asks_for_and_is_not_there_is_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    archive = make_tar(tmp_path / "a.tar.xz", [("a", b"x")])
    monkeypatch.setattr(archives._Unpacking, "_write", fail)
    with pytest.raises(CorruptCheckpoint, match="more memory than there is"):
        open_archive(archive, tmp_path)
    assert not left_in(tmp_path)


def test_the_limit_of_sources_is_kept(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", [("a", bytes(2000)), ("b", bytes(2000))])
    with pytest.raises(CorruptCheckpoint, match="3000 bytes"):
        open_archive(archive, tmp_path, max_bytes=3000)


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.xz"])
def test_a_damaged_archive_is_told_as_one_wherever_it_is_cut(tmp_path: Path, name: str) -> None:
    make = make_zip if name == "a.zip" else make_tar
    whole = make(tmp_path / name, [("a", bytes(range(256)) * 40), ("b", b"x" * 5000)]).read_bytes()
    for size in (0, 1, 10, 100, len(whole) // 2, len(whole) - (30 if name == "a.zip" else len(whole) // 4)):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(CorruptCheckpoint):
            open_archive(tmp_path / name, tmp_path)
    assert not left_in(tmp_path)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    data = bytearray(make_zip(tmp_path / "a.zip", [("a", b"secret")]).read_bytes())
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="encrypted"):
        open_archive(tmp_path / "a.zip", tmp_path)


def test_archives_are_told_by_their_names() -> None:
    assert [is_archive(name) for name in ("a.zip", "b.TAR.GZ", "c.tgz", "d.gguf", "e.onnx", "zip")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"zip or tar\.gz"):
        is_archive("model.tar.zst")
