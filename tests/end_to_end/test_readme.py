"""Every command in the README runs, in the order a newcomer types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SMALL = {
    "epochs": 1,
    "train_samples": 96,
    "val_samples": 16,
    "test_samples": 16,
    "image_size": 32,
    "width": 8,
    "hidden_size": 32,
}

pytest.importorskip("torch", reason="the demo trains, which needs the train extra")


def commands(text: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HEADWAY_HOME": str(home), "NO_COLOR": "1"}


def run(line: str, folder: Path, home: Path, **more: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", line],
        cwd=folder,
        env={**environment(home), **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def small() -> str:
    return " ".join(f"--set config.{name}={value}" for name, value in SMALL.items())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a newcomer has after `git clone`, with an environment that is set up already."""
    folder = tmp_path_factory.mktemp("clone") / "headway"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).exists() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)
    (folder / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        if not part.name.startswith("."):
            (folder / ".venv" / part.name).symlink_to(part)
    (folder / ".venv" / ".ready-demo").touch()
    return folder


@pytest.mark.slow
def test_make_demo_trains_scores_exports_and_captions_and_is_quick_the_second_time(clone: Path, tmp_path: Path) -> None:
    said = run("make demo", clone, tmp_path / "home", HEADWAY_DEMO=small())
    demo = clone / "demo" / "runs" / "demo"
    for name in ("report.html", "report.json", "export/bundle.json", "export/model.safetensors", "teardown.json"):
        assert (demo / name).is_file(), name
    assert "demo/runs/demo/report.html" in said
    assert "What to type next" in said
    before = (demo / "export" / "model.safetensors").stat().st_mtime_ns
    again = run("make demo", clone, tmp_path / "home", HEADWAY_DEMO=small())
    assert "has already been trained" in again
    assert (demo / "export" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_every_other_command_of_the_readme_works_as_written(clone: Path, tmp_path: Path) -> None:
    lines = commands((clone / "README.md").read_text())
    assert lines[0] == "make demo"
    folder, home = tmp_path / "mine", tmp_path / "home"
    folder.mkdir()
    for line in lines[1:]:
        if line.startswith("pip install '.["):
            # What it brings is installed already, or this test would have been skipped: the package itself is built.
            extra = "--no-deps --target lib --quiet"
            run(f"pip install {extra} {clone}", folder, home)
        else:
            run(line, folder, home)
        if line == "headway init":
            job = folder / "headway.yaml"
            settings = "".join(f"  {name}: {value}\n" for name, value in SMALL.items())
            job.write_text(re.sub(r"config:.*\n( +.*\n)+", f"config:\n{settings}", job.read_text()))
    assert (folder / "runs").is_dir()


def test_the_readme_names_only_pages_and_pictures_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
