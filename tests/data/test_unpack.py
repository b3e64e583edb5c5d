from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import DiskFull
from headway.data.download.archive import BadArchive, Limits, is_archive, looks_packed, unpack


def made_zip(path: Path, files: dict[str, bytes], **attributes: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = attributes.get("mode", 0o644) << 16
            archive.writestr(entry, body, zipfile.ZIP_DEFLATED)
    return path


def made_tar(path: Path, files: dict[str, bytes], kind: str = "w:gz", **changes: Any) -> Path:
    with tarfile.open(path, kind) as archive:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            for attribute, value in changes.items():
                setattr(entry, attribute, value)
            archive.addfile(entry, io.BytesIO(body))
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


GOOD = {"a.txt": b"one", "deep/er/b.jpg": b"two", "empty": b""}


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz", "no-ending"])
def test_archives_of_every_kind_are_unpacked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    kinds = {"x.tar": "w", "x.tar.bz2": "w:bz2", "x.tar.xz": "w:xz"}
    made_zip(path, GOOD) if name in ("x.zip", "no-ending") else made_tar(path, GOOD, kinds.get(name, "w:gz"))
    assert looks_packed(path)
    assert unpack(path, tmp_path / "to") == 3
    assert files_below(tmp_path / "to") == GOOD


def test_a_single_packed_file_loses_its_ending(tmp_path: Path) -> None:
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"a sentence\n"))
    unpack(tmp_path / "train.en.gz", tmp_path / "to")
    assert files_below(tmp_path / "to") == {"train.en": b"a sentence\n"}


def test_parts_of_a_data_set_are_unpacked_into_one_folder(tmp_path: Path) -> None:
    unpack(made_zip(tmp_path / "a.zip", {"train/1.jpg": b"1"}), tmp_path / "to")
    unpack(made_zip(tmp_path / "b.zip", {"val/2.jpg": b"2"}), tmp_path / "to")
    assert files_below(tmp_path / "to") == {"train/1.jpg": b"1", "val/2.jpg": b"2"}


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil", "a/b/../../../evil", "//server/evil"]
)
@pytest.mark.parametrize("make", [made_zip, made_tar])
def test_nothing_escapes_the_folder(tmp_path: Path, name: str, make: Any) -> None:
    archive = make(tmp_path / ("x.zip" if make is made_zip else "x.tgz"), {"fine.txt": b"", name: b"evil"})
    with pytest.raises(BadArchive, match="outside its folder"):
        unpack(archive, tmp_path / "in" / "to")
    assert not list(tmp_path.rglob("*evil*"))
    assert not (tmp_path / "in" / "to").exists()


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            entry = tarfile.TarInfo(f"odd{kind.decode()}")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        entry = tarfile.TarInfo("odd2/through.txt")  # through the symbolic link above, if there were one
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"text"))
    unpack(tmp_path / "x.tar", tmp_path / "to")
    assert files_below(tmp_path / "to") == {"odd2/through.txt": b"text"}
    linked = made_zip(tmp_path / "y.zip", {"link": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)
    unpack(linked, tmp_path / "zip")
    assert list((tmp_path / "zip").iterdir()) == []


def test_a_bomb_is_stopped_by_what_it_writes_not_by_what_it_says(tmp_path: Path) -> None:
    bomb = made_zip(tmp_path / "bomb.zip", {"zeros": bytes(5_000_000)})
    with pytest.raises(BadArchive, match="a decompression bomb"):
        unpack(bomb, tmp_path / "to", Limits(free=100_000, ratio=50))
    packed = made_tar(tmp_path / "bomb.tgz", {"zeros": bytes(5_000_000)})
    with pytest.raises(BadArchive, match="a decompression bomb"):
        unpack(packed, tmp_path / "to", Limits(free=100_000, ratio=50))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bomb.tgz", "bomb.zip"]


def test_too_many_files_are_stopped(tmp_path: Path) -> None:
    archive = made_zip(tmp_path / "x.zip", {str(n): b"" for n in range(20)})
    with pytest.raises(BadArchive, match="more than 10 files"):
        unpack(archive, tmp_path / "to", Limits(files=10))


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"2")
    with pytest.raises(BadArchive, match="twice"):
        unpack(path, tmp_path / "to")


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.98])
@pytest.mark.parametrize("name", ["x.zip", "x.tgz", "x.gz"])
def test_a_truncated_archive_is_a_clear_error_and_leaves_nothing(tmp_path: Path, name: str, keep: float) -> None:
    body = os.urandom(60_000)
    if name == "x.gz":
        (tmp_path / name).write_bytes(gzip.compress(body))
    else:
        (made_zip if name == "x.zip" else made_tar)(tmp_path / name, {"a": body, "b": body})
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(BadArchive, match="fetch it again"):
        unpack(tmp_path / name, tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_damaged_file_in_a_zip_is_noticed(tmp_path: Path) -> None:
    path = made_zip(tmp_path / "x.zip", {"a": os.urandom(5000)})
    body = bytearray(path.read_bytes())
    body[1000] ^= 0xFF
    path.write_bytes(body)
    with pytest.raises(BadArchive):
        unpack(path, tmp_path / "to")


def test_a_damaged_header_of_gzip_is_a_clear_error_with_every_python(tmp_path: Path) -> None:
    """Pythons before 3.11.4 raise an AttributeError of their own here."""
    archive = tmp_path / "pictures.tar.gz"
    archive.write_bytes(bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 0, 3, 0xEA, 0x57]) + b"\xff" * 30_000)
    with pytest.raises(BadArchive, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_remains_of_a_killed_start_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "to.unpacking").mkdir()
    (tmp_path / "to.unpacking" / "half").write_text("x")
    unpack(made_zip(tmp_path / "x.zip", GOOD), tmp_path / "to")
    assert files_below(tmp_path / "to") == GOOD
    assert not (tmp_path / "to.unpacking").exists()


def test_what_a_mac_packs_beside_the_files_is_left_out(tmp_path: Path) -> None:
    unpack(
        made_zip(tmp_path / "x.zip", {"__MACOSX/._a": b"", "._b": b"", "d/.DS_Store": b"", "a": b"1"}), tmp_path / "to"
    )
    assert files_below(tmp_path / "to") == {"a": b"1"}


def test_endings_are_known() -> None:
    assert is_archive("A.ZIP")
    assert is_archive("b.tar.xz")
    assert not is_archive("c.rar")


def test_a_megabyte_that_expands_to_a_gibibyte_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("zeros", "w") as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
    assert bomb.stat().st_size < 1_100_000
    with pytest.raises(BadArchive, match=r"exceeds 10[0-9] MB, which is 100 times|exceeds 105 MB, the most"):
        unpack(bomb, tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.zip"]


def test_an_archive_that_would_fill_the_disk_is_refused_while_there_is_room(tmp_path: Path) -> None:
    packed = made_zip(tmp_path / "a.zip", {"a": bytes(range(256)) * 8000})
    with pytest.raises(DiskFull, match="of the free disk space"):
        unpack(packed, tmp_path / "to", Limits(disk_share=1e-9))
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
