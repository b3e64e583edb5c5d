"""What a project needs installed: its requirements, else its pyproject.toml, else its setup.py; and who says so."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import BadJob
from headway.core.plan import Plan
from headway.packaging import dependencies
from headway.packaging.dependencies import Dependencies
from headway.packaging.dockerfile import ImageSpec, image_of_plan
from headway.planning import plan
from headway.spec import Job, TargetEntry
from headway.spec.model import Image
from headway.targets.shell import install_commands
from headway.targets.vertex import boot

LISTED = '[project]\nname = "p"\nversion = "1"\ndependencies = ["numpy>=1.26", "six"]\n'
BUILT = LISTED + '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
VERTEX = TargetEntry(kind="vertex", options={"project": "my-project", "mode": "package"})
SSH = TargetEntry(kind="ssh", options={"host": "me@box"})


def project(root: Path, **changes: Any) -> Job:
    (root / "train.py").write_text("import six\n")
    targets = {"vertex": VERTEX, "box": SSH}
    fields = {"name": "own", "script": "train.py", "outputs": "gs://bucket/runs", "root": str(root), "targets": targets}
    return Job(**{**fields, **changes})


def planned(job: Job, on: str) -> Plan:
    return plan(job if on != "docker" else replace(job, outputs=str(Path(job.root) / "runs")), on=on)


def test_a_pyproject_of_tools_alone_does_not_describe_a_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    assert dependencies.find(project(tmp_path)).source == ""
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    assert dependencies.find(project(tmp_path)).source == "setup.py"


def test_a_project_without_a_build_system_is_not_built(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(LISTED)
    found = dependencies.find(project(tmp_path))
    assert (found.source, found.listed, found.install) == ("pyproject.toml", ("numpy>=1.26", "six"), False)
    (tmp_path / "pyproject.toml").write_text(BUILT)
    assert dependencies.find(project(tmp_path)).install


def test_requirements_win_and_the_plan_says_so(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(LISTED)
    (tmp_path / "requirements.txt").write_text("six\n")
    made = planned(project(tmp_path, requirements="requirements.txt"), "box")
    assert "dependencies: installed from requirements.txt (pyproject.toml is not installed)" in made.notes
    assert "dependencies" not in made.job
    made = planned(project(tmp_path), "box")
    assert "dependencies: installed from pyproject.toml (its dependencies)" in made.notes


def test_nothing_is_installed_on_this_machine_and_the_plan_says_so(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    (note,) = planned(project(tmp_path, outputs=str(tmp_path / "runs")), "local").notes
    assert note.startswith("dependencies: setup.py is not installed: nothing is installed on this machine")
    assert f"{sys.executable} -m pip install ." in note
    own = project(tmp_path, outputs=str(tmp_path / "runs"), python=sys.executable)
    (note,) = planned(own, "local").notes
    assert note.endswith(f"setup.py is not installed: {sys.executable} runs the program, with its own packages")


def test_a_generated_image_installs_the_list_before_the_code_and_the_project_after_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(BUILT)
    image = image_of_plan(planned(project(tmp_path), "docker"))
    assert isinstance(image, ImageSpec)
    text = image.dockerfile()
    listed = text.index("install -r /build/project.txt")
    assert listed < text.index("COPY code/ /build/project/") < text.index("install /build/project ")
    assert "train" not in image.extras  # torch comes from the project's own list, or not at all


def test_a_list_of_dependencies_alone_does_not_depend_on_the_code(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(LISTED)

    def environment() -> str:
        text = str(planned(project(tmp_path), "box").requests[0].body["text"])
        return next(line for line in text.splitlines() if line.startswith("env="))

    first = environment()
    (tmp_path / "more.py").write_text("pass\n")
    assert environment() == first
    (tmp_path / "pyproject.toml").write_text(LISTED.replace("six", "tqdm"))
    assert environment() != first


def test_start_scripts_install_what_the_project_lists(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(BUILT)
    text = str(planned(project(tmp_path), "box").requests[0].body["text"])
    assert "install 'numpy>=1.26' six || fail" in text
    assert 'install "$env-project"' in text
    spec = planned(project(tmp_path), "vertex").requests[-2].body["body"]["jobSpec"]["workerPoolSpecs"][0]
    booted = next(v["value"] for v in spec["pythonPackageSpec"]["env"] if v["name"] == boot.SPEC)
    assert '"install": true' in booted
    assert '"listed": ["numpy>=1.26", "six"]' in booted


def test_the_project_is_installed_from_a_copy_that_leaves_nothing_in_the_working_folder(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "setup.py").write_text("")
    steps = "\n".join(install_commands(Dependencies(install=True, source="setup.py")))
    script = f'fail() {{ exit 1; }}\ninstall() {{ touch "$1/built"; cp "$1/setup.py" "$env.seen"; }}\n{steps}\n'
    env = {"env": str(tmp_path / "env"), "HEADWAY_CODE_DIR": str(code), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-ec", script], env=env, check=True)
    assert (tmp_path / "env.seen").exists()
    assert [path.name for path in code.iterdir()] == ["setup.py"]
    assert not (tmp_path / "env-project").exists()


def test_vertex_installs_the_project_from_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "setup.py").write_text("")
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(boot, "pip", lambda what, folder, *words: said.append(words))
    boot.install({"listed": ["six"], "install": True, "needs": []}, tmp_path / "code", tmp_path)
    assert said[0][:2] == ("six", str(tmp_path / "project"))
    assert (tmp_path / "project" / "setup.py").exists()


@pytest.mark.parametrize("on", ["docker", "box", "vertex"])
def test_a_pyproject_that_cannot_be_read_or_installed_is_refused_where_it_would_be(tmp_path: Path, on: str) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(BadJob, match=r"pyproject.toml cannot be read"):
        planned(project(tmp_path), on)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "p"\ndependencies = ["headway"]\n')
    with pytest.raises(BadJob, match="Headway is installed from its own wheel"):
        planned(project(tmp_path), on)
    assert planned(project(tmp_path, outputs=str(tmp_path / "runs")), "local").notes


def test_an_image_that_is_used_as_it_is_gets_nothing_installed_and_the_plan_says_so(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")
    made = planned(project(tmp_path, image=Image(uri="team/trainer:v1")), "docker")
    assert "dependencies: setup.py is not installed: team/trainer:v1 is used as it is" in made.notes


def test_what_executes_a_notebook_is_installed_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    (tmp_path / "requirements.txt").write_text("six\n")
    text = str(planned(project(tmp_path, script=None, notebook="a.ipynb"), "box").requests[0].body["text"])
    assert "install nbclient ipykernel ||" in text
    both = project(tmp_path, script=None, notebook="a.ipynb", requirements="requirements.txt")
    text = str(planned(both, "box").requests[0].body["text"])
    assert text.index("install --requirement requirements.txt") < text.index("install nbclient ipykernel")
