"""The source package: deterministic, built by pip without a network, and it never replaces the image's torch."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from headway.planning import Plan
from headway.targets.vertex import boot, package
from headway.targets.vertex.package import boot_source, file_name, planned_code, requirements, sdist
from tests.servers.vertex_machines import Image
from tests.targets.vertex.jobs import planned


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def made(plan: Plan) -> bytes:
    return sdist(plan, planned_code(plan, "gs://nowhere/runs"))


def test_the_same_code_gives_the_same_bytes_and_other_code_another_name(tmp_path: Path) -> None:
    one = planned(tmp_path / "project")
    first = made(one)
    os.utime(tmp_path / "project" / "train.py", (1, 1))
    again = planned(tmp_path / "project")
    assert made(again) == first
    assert file_name(again) == file_name(one)
    other = planned(tmp_path / "other", args=())
    (tmp_path / "other" / "more.py").write_text("")
    other = planned(tmp_path / "other")
    assert file_name(other) != file_name(one)


def test_it_holds_the_planned_code_and_nothing_of_this_machine(tmp_path: Path) -> None:
    plan = planned(tmp_path / "project")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(made(plan)))) as tar:
        members = {member.name.partition("/")[2]: member for member in tar}
        code = tar.extractfile(members["headway_job/code.tar"])
        assert code is not None
        assert hashlib.sha256(code.read()).hexdigest() == plan.code.sha256
    assert {(member.mtime, member.uid, member.uname) for member in members.values()} == {(0, 0, "")}


def test_pip_builds_it_without_a_network(tmp_path: Path) -> None:
    plan = planned(tmp_path / "project")
    path = tmp_path / file_name(plan)
    path.write_bytes(made(plan))
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(tmp_path / "there")]
    done = subprocess.run([*pip, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "there" / "headway_job").iterdir()} >= {"task.py", "boot.py", "code.tar"}


def test_it_requires_nothing_that_pip_would_bring(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(made(planned(tmp_path / "project"))))) as tar:
        about = tar.extractfile(next(member for member in tar if member.name.endswith("PKG-INFO")))
        assert about is not None
        assert b"Requires-Dist" not in about.read()


def test_what_headway_needs_is_what_its_own_metadata_says() -> None:
    base, trains = requirements(()), requirements(("gcp", "train"))
    assert any(line.startswith("obstore") for line in base)
    assert not any(line.startswith(("torch", "google-auth")) for line in base)
    assert {re.split("[<>=;]", line)[0] for line in trains} >= {"torch", "numpy", "google-auth", "obstore"}
    assert not any("extra" in line or line.startswith("headway") for line in trains)


# ── boot: what runs there before Headway does ────────────────────────────────


def test_boot_uses_pythons_own_library_alone() -> None:
    import ast

    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(boot_source()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= sys.stdlib_module_names


def test_the_images_torch_is_held_by_its_public_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name not in ("torch", "torchvision"):
            raise metadata.PackageNotFoundError(name)
        return {"torch": "2.4.0+cu121", "torchvision": "0.19.0"}[name]

    monkeypatch.setattr(metadata, "version", version)
    assert boot.pins() == ["torch==2.4.0", "torchvision==0.19.0"]


@pytest.mark.slow
def test_requirements_that_ask_for_another_torch_end_it_before_anything_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a real pip, a real index of files that has a newer torch, and an image that has an older one."""
    python = Image(fresh=True).python(tmp_path)
    site = next(Path(python).parents[1].glob("lib/*/site-packages"))
    _install(site, "torch", "2.4.0")
    index = tmp_path / "index"
    index.mkdir()
    _wheel(index, "torch", "2.13.0")
    (tmp_path / "code").mkdir()
    script = (
        "import json, os, sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\nimport boot\n"
        "boot.install(json.loads(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))\n"
        "from importlib.metadata import version\nprint('torch', version('torch'))\n"
    )
    home = Path(boot.__file__).parent

    def run(line: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "code" / "requirements.txt").write_text(line)
        spec = json.dumps({"requirements": "requirements.txt", "needs": ["torch>=2.4,<2.14"]})
        (tmp_path / "boot.py").write_text((home / "boot.py").read_text())
        env = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "HOME": str(tmp_path)}
        words = [python, "-c", script, str(tmp_path), spec, str(tmp_path / "code"), str(tmp_path)]
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False)

    kept = run("torch\n")
    assert (kept.returncode, kept.stdout.strip()) == (0, "torch 2.4.0"), kept.stderr
    refused = run("torch==2.13.0\n")
    assert refused.returncode == 2
    assert "beside the packages of this image (torch==2.4.0)" in refused.stderr
    assert list(site.glob("torch-*.dist-info")) == [site / "torch-2.4.0.dist-info"]


def _install(site: Path, name: str, version: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


def _wheel(folder: Path, name: str, version: str) -> None:
    import zipfile

    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_code_that_is_not_the_planned_one_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        boot.check(b"other code", hashlib.sha256(b"code").hexdigest(), "the code")
    assert ended.value.code == 2
    assert package.MODULE == "headway_job.task"
