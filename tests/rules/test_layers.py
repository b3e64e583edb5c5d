"""Which package may import which. Reads the source, so imports inside functions count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# A package imports those above it in this list, never those below.
ORDER = (
    "_version",
    "core",
    "plugins",  # the registries: what they name is imported on use
    "storage",
    "spec",
    "rundir",
    "bundle",
    "pricing",
    "data",
    "metrics",
    "packaging",
    "diagnose",
    "targets",
    "planning",
    "launcher",
    "integrations",  # runs in the program's own interpreter: the standard library alone
    "supervisor",
    "training",
    "backbones",
    "artifacts",
    "recipes",
    "serving",
    "dashboard",
    "ci",
    "tools",
    "cli",
    "testing",  # the contracts of plug-ins as tests; needs pytest
    "runtime",  # the public name of `training`, and the supervisor's name in recorded wheels
)
# What runs on the machine that trains never imports what starts it.
FORBIDDEN = ("targets", "planning", "launcher", "cli")
BESIDE_THE_MODEL = ("integrations", "supervisor", "data", "metrics", "training", "backbones", "artifacts", "recipes")
HEAVY = {"torch", "numpy", "safetensors", "PIL", "pyarrow", "dask"}
TRAINS = ("training", "backbones", "artifacts", "recipes", "serving")  # import torch
MAY_IMPORT_HEAVY = (
    *TRAINS,
    "data",
    "metrics",
    "bundle.format",  # a bundle's weights are tensors
    "dashboard.views",  # curves are thinned out with numpy
    "tools.verify_checks",  # compares checkpoints
)
# Sent to another machine, or started as a file: the standard library alone.
SINGLE_FILES = (
    "supervisor.rank_entry",
    "supervisor.orphan_reaper",
    "targets.ssh.agent",
    "targets.vertex.boot",
    "integrations.hook",
    "integrations.rank_path.sitecustomize",
)


def modules() -> list[str]:
    # A template is text that `headway init` writes for the user, not a part of Headway that anything imports.
    paths = (path for path in (SRC / "headway").rglob("*.py") if path.parent.name != "templates")
    names = (".".join(path.relative_to(SRC / "headway").with_suffix("").parts) for path in paths)
    return sorted(name.removesuffix(".__init__") for name in names if name not in ("__init__", "__main__"))


def imports(module: str) -> Iterator[str]:
    """Everything a module imports when it runs: at the top and inside functions, not for type checkers."""
    path = SRC / "headway" / Path(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    tree.body = [node for node in tree.body if not _for_type_checkers(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def package(module: str) -> str:
    return module.split(".")[0]


def within(module: str, parts: tuple[str, ...]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def own(module: str) -> set[str]:
    """The packages of Headway that a module imports."""
    names = (name.removeprefix("headway.") for name in imports(module) if name.startswith("headway."))
    return {package(name) for name in names} & set(ORDER) - {package(module)}


def test_every_module_has_its_place_in_the_order() -> None:
    assert {package(module) for module in modules()} == set(ORDER)


def test_no_package_imports_one_below_it() -> None:
    place = {name: number for number, name in enumerate(ORDER)}
    wrong = [(module, name) for module in modules() for name in own(module) if place[name] > place[package(module)]]
    assert wrong == []


def test_what_trains_never_imports_what_starts_it() -> None:
    beside = [module for module in modules() if package(module) in BESIDE_THE_MODEL]
    wrong = [(module, name) for module in beside for name in own(module) & {*FORBIDDEN}]
    assert wrong == []


def test_torch_and_numpy_are_imported_only_where_they_are_listed() -> None:
    light = [module for module in modules() if not within(module, MAY_IMPORT_HEAVY)]
    wrong = [(module, name) for module in light for name in imports(module) if name.split(".")[0] in HEAVY]
    assert wrong == []


def test_files_that_are_sent_or_started_alone_import_the_standard_library_only() -> None:
    wrong = [
        (module, name)
        for module in SINGLE_FILES
        for name in imports(module)
        if name.split(".")[0] not in sys.stdlib_module_names
    ]
    assert wrong == []


def test_nothing_is_loose_at_the_top() -> None:
    found = {path.name for path in (SRC / "headway").glob("*.py")}
    assert found == {"__init__.py", "__main__.py", "_version.py"}


@pytest.mark.parametrize(
    "statement", ["import headway.cli", "from headway.planning import plan", "import headway.launcher.lifecycle"]
)
def test_control_starts_without_anything_heavy(statement: str) -> None:
    code = f"{statement}; import sys; print(sorted(set(sys.modules) & {HEAVY | {'rich', 'obstore', 'yaml'}!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
