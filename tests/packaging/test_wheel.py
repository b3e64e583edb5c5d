"""Headway's own wheel: the Headway that made the plan, installable anywhere."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headway.packaging import code
from headway.packaging.code import build_wheel, wheel_path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def test_the_same_headway_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_wheel()
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "other"))
    assert build_wheel() == first


def test_pip_installs_it_and_it_runs(tmp_path: Path) -> None:
    name, _ = build_wheel()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "lib")]
    subprocess.run([*pip, str(wheel_path(name))], check=True, capture_output=True)
    program = "import headway, headway.cli; print(headway.__file__); headway.cli.main(['--version'])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r}); {program}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path / "lib"))


def test_it_holds_all_that_the_package_needs_and_no_leftovers(tmp_path: Path) -> None:
    name, _ = build_wheel()
    with zipfile.ZipFile(wheel_path(name)) as wheel:
        names = wheel.namelist()
        assert wheel.testzip() is None
    assert "headway/py.typed" in names
    assert "headway/supervisor/supervisor.py" in names
    assert not [entry for entry in names if "__pycache__" in entry]


def test_it_is_made_again_for_changed_sources_and_for_a_damaged_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lib" / "headway"
    (package / "packaging").mkdir(parents=True)
    (package / "one.py").write_text("1\n")
    monkeypatch.setattr(code, "__file__", str(package / "packaging" / "code.py"))
    first = build_wheel()
    assert build_wheel() == first
    (package / "one.py").write_text("2\n")
    changed = build_wheel()
    assert changed != first
    for record in wheel_path(first[0]).parent.glob("*.json"):
        record.write_text("[]")
    assert build_wheel() == changed
    wheel_path(changed[0]).unlink()
    assert build_wheel() == changed
    assert wheel_path(changed[0]).exists()
