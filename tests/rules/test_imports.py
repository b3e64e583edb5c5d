"""Which part may import which: read from the source, so that it holds for imports inside functions too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CONTROL = (
    *("cli", "image", "launcher", "ledger", "logtail", "moving", "naming", "planning", "receipts", "runs", "sending"),
    *("ci", "afterwards", "curves", "deploy", "explain", "infra", "notebook", "price", "spec", "targets", "watch"),
)
SHARED = (
    "errors",
    "home",
    "intent",
    "kept",
    "lease",
    "notify",
    "planning.model",
    "processes",
    "runfolder",
    "secrets",
    "segments",
    "spec",
    "spent",
    "storage",
)
TRAINING = ("data", "encoders", "recipes", "runtime", "score", "evaluate", "export", "predict", "report")
HEAVY = {"torch", "numpy", "safetensors", "PIL", "pyarrow", "dask"}


def modules() -> list[str]:
    # A template is text that `headway init` writes for the user, not a part of Headway that anything imports.
    paths = (path for path in (SRC / "headway").rglob("*.py") if path.parent.name != "templates")
    names = (".".join(path.relative_to(SRC).with_suffix("").parts) for path in paths)
    return sorted(name.removesuffix(".__init__") for name in names)


def part(module: str) -> str:
    return module.removeprefix("headway").removeprefix(".")


def within(module: str, parts: tuple[str, ...]) -> bool:
    return any(part(module) == name or part(module).startswith(f"{name}.") for name in parts)


def imports(module: str, *, lazy: bool) -> Iterator[str]:
    path = SRC / Path(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in ast.walk(tree):
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", [m for m in modules() if within(m, CONTROL + SHARED)])
def test_control_never_imports_torch_or_numpy(module: str) -> None:
    assert not {name for name in imports(module, lazy=True) if name.split(".")[0] in HEAVY}


@pytest.mark.parametrize("module", [m for m in modules() if within(m, CONTROL) and not within(m, ("cli",))])
def test_control_never_imports_a_recipe_or_the_runtime(module: str) -> None:
    allowed = ("headway.recipes", "headway.recipes.registry")
    light = ("headway.data.checking", "headway.data.manifest")  # what prepared data says of itself
    met = {
        n
        for n in imports(module, lazy=True)
        if within(n, TRAINING) and not n.startswith((allowed[1], *light)) and n != allowed[0]
    }
    assert not {name for name in met if name.startswith("headway.")}


@pytest.mark.parametrize("module", [m for m in modules() if within(m, TRAINING)])
def test_runtime_and_recipes_never_import_a_target_the_planner_or_the_command_line(module: str) -> None:
    # targets.base holds values that run folders are read into; it imports no target.
    met = {name for name in imports(module, lazy=True) if name.startswith("headway.") and within(name, CONTROL)}
    assert not {name for name in met if not within(name, SHARED) and not name.startswith("headway.targets.base")}


@pytest.mark.parametrize(
    "statement", ["import headway.cli", "from headway.planning import plan", "import headway.launcher"]
)
def test_control_starts_without_anything_heavy(statement: str) -> None:
    code = f"{statement}; import sys; print(sorted(set(sys.modules) & {HEAVY | {'rich', 'obstore', 'yaml'}!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
