"""The code that is sent: by content, complete, and never a secret."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from headway.core.errors import BadInput, BadPlan
from headway.packaging.code import Package, archive_path, package, unpack
from headway.spec import Job


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def project(folder: Path, files: dict[str, str]) -> Job:
    for name, text in {"train.py": "print()\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Job(name="job", script="train.py", root=str(folder))


def names(packed: Package) -> list[str]:
    return [name for name, _ in packed.files]


def test_the_same_content_has_the_same_name_wherever_and_whenever_it_lies(tmp_path: Path) -> None:
    files = {"a/b.py": "1", "c.txt": "2"}
    one = package(project(tmp_path / "one", files))
    two = project(tmp_path / "two", dict(reversed(files.items())))
    os.utime(tmp_path / "two" / "c.txt", (0, 0))
    assert package(two).sha256 == one.sha256


def test_a_changed_byte_a_new_name_or_an_executable_bit_is_other_code(tmp_path: Path) -> None:
    job = project(tmp_path, {"a.py": "1"})
    seen = {package(job).sha256}
    (tmp_path / "a.py").write_text("2")
    seen.add(package(job).sha256)
    (tmp_path / "a.py").chmod(0o755)
    seen.add(package(job).sha256)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    seen.add(package(job).sha256)
    assert len(seen) == 4


def test_ignore_files_bind_for_their_folder_and_below(tmp_path: Path) -> None:
    job = project(
        tmp_path,
        {".gitignore": "*.log\n/data/\n", ".headwayignore": "notes.md\n", "x.log": "", "data/big.bin": "",
         "notes.md": "", "sub/.gitignore": "!keep.log\nlocal.py\n", "sub/local.py": "", "sub/other.py": "",
         "local.py": ""},
    )  # fmt: skip
    assert names(package(job)) == [
        ".gitignore",
        ".headwayignore",
        "local.py",
        "sub/.gitignore",
        "sub/other.py",
        "train.py",
    ]


def test_version_control_environments_and_outputs_are_never_sent(tmp_path: Path) -> None:
    job = project(tmp_path, {".git/config": "", ".venv/x": "", "__pycache__/a.pyc": "", "runs/r1/plan.json": ""})
    assert names(package(job)) == ["train.py"]


def test_what_looks_like_a_secret_is_left_out_and_said(tmp_path: Path) -> None:
    job = project(tmp_path, {".env": "KEY=1", "deploy/id_rsa": "x", "my-service-account.json": "{}", "keys/a.pem": ""})
    packed = package(job)
    assert names(packed) == ["train.py"]
    assert set(packed.secrets) == {".env", "deploy/id_rsa", "my-service-account.json", "keys/a.pem"}


def test_a_link_out_of_the_folder_is_refused_with_what_to_type(tmp_path: Path) -> None:
    job = project(tmp_path / "in", {})
    (tmp_path / "in" / "link").symlink_to("/etc/hostname")
    with pytest.raises(BadInput, match=r"echo link >> .headwayignore"):
        package(job)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = project(tmp_path, {"locked.py": ""})
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "locked.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)  # root, as whom CI runs, may read everything
    with pytest.raises(BadInput, match=r"cannot read locked\.py: Permission denied"):
        package(job)


def test_what_was_packed_comes_out_again_with_its_modes(tmp_path: Path) -> None:
    job = project(tmp_path / "in", {"bin/go": "#!/bin/sh\n", "größe.txt": "ü"})
    (tmp_path / "in/bin/go").chmod(0o755)
    packed = package(job)
    unpack(packed.path, packed.sha256, tmp_path / "out")
    assert (tmp_path / "out/größe.txt").read_text() == "ü"
    assert os.access(tmp_path / "out/bin/go", os.X_OK)
    assert not os.access(tmp_path / "out/train.py", os.X_OK)


def test_an_archive_that_is_not_the_planned_one_is_not_unpacked(tmp_path: Path) -> None:
    packed = package(project(tmp_path / "in", {}))
    body = packed.path.read_bytes()
    for damage in (body[:-9], body[:20] + b"\0" + body[21:], b""):
        packed.path.write_bytes(damage)
        with pytest.raises(BadPlan, match="code archive"):
            unpack(packed.path, packed.sha256, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    import hashlib

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../evil"))
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(BadPlan, match="evil"):
        unpack(path, hashlib.sha256(buffer.getvalue()).hexdigest(), tmp_path / "out")


def test_a_recipe_sends_no_files(tmp_path: Path) -> None:
    (tmp_path / "huge.bin").write_text("x")
    packed = package(Job(name="job", recipe="captioning", root=str(tmp_path)))
    assert packed.files == ()
    assert packed.path == archive_path(packed.sha256)
    assert packed.path.exists()
