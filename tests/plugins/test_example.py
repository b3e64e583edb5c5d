"""examples/plugin: built, installed with pip into a new environment, held to the contracts, and run end to end."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
PAGE = ROOT / "docs" / "plugins.md"
PLUGINS = {
    ("targets", "nice"),
    ("recipes", "line"),
    ("stores", "sqlite"),
    ("trackers", "csv"),
    ("readers", "jsonlines"),
    ("providers", "garage"),
}

Headway = Callable[..., str]


def run(*words: object, cwd: Path, timeout: int = 600, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel of the example. Headway, torch and pytest are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    built = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "wheels", source, cwd=folder)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (folder / "wheels").glob("*.whl")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "env" / "bin" / "python"
    installed = run(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "of-the-tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return python


@pytest.fixture
def headway(python: Path, tmp_path: Path) -> Headway:
    def call(*words: object) -> str:
        done = run(python, "-m", "headway", *words, cwd=tmp_path, HEADWAY_HOME=str(tmp_path / "home"))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


@pytest.mark.slow
def test_headway_finds_one_of_each_kind_in_the_wheel(headway: Headway) -> None:
    rows = json.loads(headway("plugins", "--json"))
    ours = {(row["group"], row["name"]) for row in rows if row["distribution"] == "headway-workbench 0.1"}
    assert ours == PLUGINS
    assert [row["problem"] for row in rows if row["problem"]] == []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_each_passes_the_contract_of_its_kind(python: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests")
    options = ("-q", "-p", "no:cacheprovider", "-n", "0", "--basetemp", tmp_path / "temp")
    done = run(python, "-m", "pytest", *options, tmp_path / "tests", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "warning" not in done.stdout.lower()


@pytest.mark.slow
@pytest.mark.torch
def test_all_of_them_work_together_in_one_run(headway: Headway, python: Path, tmp_path: Path) -> None:
    database = tmp_path / "workbench.db"
    text = (EXAMPLE / "headway.yaml").read_text()
    (tmp_path / "headway.yaml").write_text(text.replace("sqlite:///tmp/workbench.db", f"sqlite://{database}"))
    planned = headway("plan", "--on", "quiet")
    assert "the store sqlite is from headway-workbench 0.1: installed here" in planned
    headway("run", "--on", "quiet", "--yes", "--name", "first")
    assert json.loads(headway("status", "first", "--json"))["state"] == "finished"
    assert f"sqlite://{database}/runs/first" in headway("ps")
    headway("pull", "first", "--to", tmp_path / "here")
    written = (tmp_path / "here/files/metrics.csv").read_text().splitlines()
    assert sum(line.split(",")[1] == "loss" for line in written) == 40
    assert json.loads(headway("eval", "first", "--json"))["metrics"]["error"] < 1
    (answer,) = json.loads(headway("predict", "first", "0.5", "--json"))
    assert answer["input"] == "0.5"
    code = "import headway; print(headway.load_model('first').predict('0.5'), headway.evaluate('first')['metrics'])"
    asked = run(python, "-c", code, cwd=tmp_path, HEADWAY_HOME=str(tmp_path / "home"))
    assert answer["text"] in asked.stdout, asked.stderr
    assert "error" in asked.stdout
    headway("down", "first")
    assert "nothing is left behind" in headway("gc", "--on", "nice")


@pytest.mark.slow
def test_its_reader_prepares_data_and_its_recipe_has_a_template(headway: Headway, tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    source.mkdir()
    (source / "train.jsonl").write_text(
        "".join(json.dumps({"source": f"{n} dogs", "target": f"{n} Hunde"}) + "\n" for n in range(40))
    )
    headway("data", "prepare", source, "--to", tmp_path / "prepared")  # recognised without --format
    assert json.loads((tmp_path / "prepared/manifest.json").read_text())["task"] == "translation"
    headway("init", "line", "--to", tmp_path / "begun")
    assert "recipe: line" in (tmp_path / "begun/headway.yaml").read_text()


def test_the_page_shows_the_example_as_it_is() -> None:
    sources = [path.read_text() for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml", ".yaml")]
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) > 8
    for block in blocks:
        for part in block.strip().split("\n…\n"):
            assert any(part.strip() in source for source in sources), part
