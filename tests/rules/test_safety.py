"""What docs/security.md promises of the code itself, read from the source: no pickle, no shell, no unhashed install."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Formats that run code, or lead to it, when a file of them is read.
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
READS_FOREIGN_WEIGHTS = (
    "training/checkpoint/init_weights.py",
    "read_torch_file",
)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def words(call: ast.Call) -> dict[str, str]:
    return {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_nothing_that_runs_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert not {name for name in imported if name.split(".")[0] in PICKLES}
    for name, call in calls(tree):
        given = words(call)
        assert name not in ("eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"), ast.unparse(call)
        assert given.get("shell", "False") == "False" or name == "argcomplete.shellcode", ast.unparse(call)
        assert given.get("allow_pickle", "False") == "False", ast.unparse(call)
        assert not name.endswith(("_object", "_object_list")) or "dist" not in name, ast.unparse(call)
        assert "trust_remote_code" not in given, ast.unparse(call)


def test_one_function_reads_weights_of_torchs_own_format_and_only_as_plain_tensors() -> None:
    found = []
    for path in SOURCES:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for name, call in calls(function):
                if name in ("torch.load", "torch.jit.load", "torch.package.PackageImporter"):
                    assert words(call).get("weights_only") == "True", ast.unparse(call)
                    found.append((path.relative_to(ROOT / "src" / "headway").as_posix(), function.name))
    assert found == [READS_FOREIGN_WEIGHTS]


def test_pictures_are_opened_in_named_formats_alone() -> None:
    """Pillow would hand an EPS file to Ghostscript."""
    opened = [
        (path, call)
        for path in SOURCES
        for name, call in calls(ast.parse(path.read_text()))
        if name in ("Image.open", "PIL.Image.open")
    ]
    assert opened
    for path, call in opened:
        assert "formats" in words(call), f"{path}: {ast.unparse(call)}"


# -- what `make` installs ---------------------------------------------------------------------------------------------

BY_VERSION = re.compile(r"torch|triton|cuda-[\w-]+|nvidia-[\w-]+")


def locked(name: str) -> dict[str, str]:
    """Package -> its entry."""
    text = (ROOT / "requirements" / f"locked-{name}.txt").read_text()
    entries = [entry for entry in re.split(r"\n(?=[a-zA-Z])", text) if not entry.startswith("#")]
    return {_name(entry): entry for entry in entries}


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("name", ["demo", "test"])
def test_every_package_of_the_lock_has_one_version_and_hashes_and_names_no_index(name: str) -> None:
    entries = locked(name)
    assert len(entries) > 20
    for package, entry in entries.items():
        assert re.match(r"[\w.-]+==[\w.!+]+( ;[^\\]+)? \\\n", entry), entry[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), package
        assert not BY_VERSION.fullmatch(package)
        assert "://" not in entry


def test_the_lock_holds_all_that_headway_and_its_tests_ask_for() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tested = (ROOT / "requirements" / "test.txt").read_text().splitlines()
    everything = re.findall(r"[a-z]+", extras["all"][0].partition("[")[2])
    wanted = {
        "demo": [*project["dependencies"], *extras["train"]],
        "test": [*project["dependencies"], *tested, *(line for extra in everything for line in extras[extra])],
    }
    for name, lines in wanted.items():
        asked = {_name(line) for line in lines if line and not line.startswith("#")}
        missing = {package for package in asked - set(locked(name)) if not BY_VERSION.fullmatch(package)}
        assert not missing, f"not in requirements/locked-{name}.txt: {missing}; type: make lock"
