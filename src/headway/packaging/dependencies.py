"""Find out what a project needs installed: its `requirements`, else its pyproject.toml, else its setup.py.

A pyproject.toml counts if it describes a project; one with settings of tools alone does not. Its static `dependencies`
are installed from the list. The project itself is installed (`pip install .`) only if it has a `[build-system]`, as in
uv: pip would fall back to setuptools, which refuses most folders of scripts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from headway.core.errors import Problem
from headway.spec.model import ProjectDependencies

if TYPE_CHECKING:
    from headway.spec import Job

PYPROJECT, SETUP = "pyproject.toml", "setup.py"
NOTEBOOK_PACKAGES = ("nbclient", "ipykernel")  # what executes a notebook
LIST_FILE = "project.txt"  # of an image's build context: the requirements that pyproject.toml lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependencies:
    """What to install for a job's program."""

    requirements: str | None = None  # a requirements file of the project
    listed: tuple[str, ...] = ()  # requirements that pyproject.toml lists, and what executes a notebook
    install: bool = False  # the project itself: pip install .
    source: str = ""  # the file they come from, for people

    def __bool__(self) -> bool:
        return bool(self.requirements or self.listed or self.install)


def of_record(job: Mapping[str, Any]) -> Dependencies:
    """Return what a recorded job installs. Nothing if it names the interpreter of an environment of its own."""
    if job.get("python"):
        return Dependencies()
    kernel = NOTEBOOK_PACKAGES if job.get("notebook") else ()
    if job.get("requirements"):
        name = PurePosixPath(str(job["requirements"])).as_posix()
        return Dependencies(requirements=name, listed=kernel, source=name)
    found: Mapping[str, Any] = job.get("dependencies") or {}
    return Dependencies(
        listed=(*map(str, found.get("listed") or ()), *kernel),
        install=bool(found.get("install")),
        source=str(found.get("source") or ("the notebook" if kernel else "")),
    )


def find(job: Job) -> ProjectDependencies:
    """Read the project's pyproject.toml or setup.py. Runs no code. Empty if `requirements` or a recipe says it all."""
    if job.recipe is not None or job.requirements or job.python:
        return ProjectDependencies()
    root = Path(job.root)
    from_pyproject = _from_pyproject(root / PYPROJECT)
    if from_pyproject is not None:
        return from_pyproject
    return ProjectDependencies(source=SETUP, install=True) if (root / SETUP).is_file() else ProjectDependencies()


def problems(job: Job) -> list[Problem]:
    """Return the requirements that would fail where they are installed, or be a mistake there."""
    from headway.packaging import requirements

    if job.requirements:
        return requirements.problems(Path(job.root), job.requirements)
    table = _read(Path(job.root) / PYPROJECT) if job.recipe is None and not job.python else None
    if isinstance(table, str):
        what = f"{PYPROJECT} cannot be read: {table}"
        return [Problem(what=what, where=PYPROJECT, fix="fix it, or name a requirements file under `requirements`")]
    lines = find(job).listed
    found = [requirements.line_problem(line, PYPROJECT) for line in lines]
    return [problem for problem in found if problem is not None]


def describe(job: Job) -> str:
    """Return where a job's dependencies come from: `requirements.txt (pyproject.toml is not installed)`; "" if none."""
    if job.requirements:
        other = find_file(job)
        return job.requirements + (f" ({other} is not installed)" if other else "")
    found = find(job)
    if not found.source:
        return ""
    return f"{found.source} (pip install .)" if found.install else f"{found.source} (its dependencies)"


def find_file(job: Job) -> str:
    """Return the pyproject.toml or setup.py of a project, also if `requirements` or `python` takes precedence."""
    from dataclasses import replace

    return find(replace(job, requirements=None, python=None)).source


def _from_pyproject(path: Path) -> ProjectDependencies | None:
    """Read a pyproject.toml; None if it does not describe a project."""
    table = _read(path)
    if not isinstance(table, dict):
        return None
    builds = "build-system" in table
    project = table.get("project")
    if not isinstance(project, dict):
        return ProjectDependencies(source=PYPROJECT, install=True) if builds else None
    listed = project.get("dependencies")
    listed = tuple(map(str, listed)) if isinstance(listed, list) else ()
    if not listed and not builds:
        return None
    return ProjectDependencies(source=PYPROJECT, listed=listed, install=builds)


def _read(path: Path) -> dict[str, Any] | str | None:
    """Return the file's tables, or why they cannot be read; None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        return str(error)
    tomllib = _toml()
    try:
        table: dict[str, Any] = tomllib.loads(text)
        return table
    except tomllib.TOMLDecodeError as error:
        return str(error)


def _toml() -> Any:
    """Return a TOML parser: Python's own since 3.11; before, the one inside pip."""
    from importlib import import_module

    try:
        return import_module("tomllib")
    except ModuleNotFoundError:
        return import_module("pip._vendor.tomli")
