"""A model class's code: the project files it consists of, and its import from the project or from a trusted bundle."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

from headway.core.errors import BadInput, HeadwayError
from headway.model.contract import Model
from headway.storage.secret_scan import find_secrets

CODE: Final = "headway_code"  # the folder of a bundle with the files of its model class
_BASES: Final = ("", "src/")  # of a project's root: where its modules are
_MAX_FILES: Final = 1_000

T = TypeVar("T")


class ModelFailed(HeadwayError):
    """Raised if a method of a project's model class raised; the message names the line."""


def module_of(reference: str) -> str:
    """Return the module of `src.serving:Grader`."""
    return reference.partition(":")[0]


def find_code(reference: str, root: Path) -> dict[str, bytes]:
    """Return the files of the class: its module and every project module that it imports, by path below `root`.

    Empty if the module is not in the project: it is installed. Raises BadInput for a file with a credential in it.
    """
    found: dict[str, bytes] = {}
    queue = [module_of(reference)]
    while queue:
        for package, path in _files_of(queue.pop(), root):
            name = path.relative_to(root).as_posix()
            if name not in found and len(found) < _MAX_FILES:
                found[name] = path.read_bytes()
                queue += _imported(found[name], package)
    for name, body in found.items():
        for finding in find_secrets(body)[:1]:
            raise BadInput(
                f"{finding.kind} would travel with the model's code",
                where=f"{name}:{finding.line}",
                fix="read it from a variable of the environment",
            )
    return dict(sorted(found.items()))


def code_hash(files: Mapping[str, bytes]) -> str:
    """Return a hash of names and contents."""
    digest = hashlib.sha256()
    for name, body in sorted(files.items()):
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()


def is_same(files: Mapping[str, bytes], root: Path) -> bool:
    """Whether the project in `root` has each of these files, byte for byte."""

    def same(name: str, body: bytes) -> bool:
        path = root / name
        return path.is_file() and path.read_bytes() == body

    return bool(files) and all(same(name, body) for name, body in files.items())


def has_module(reference: str, root: Path) -> bool:
    """Whether the class's module is a file of the project in `root`."""
    return bool(_files_of(module_of(reference), root))


def _files_of(module: str, root: Path) -> list[tuple[str, Path]]:
    """Return the file of a module after those of the packages around it, each with the package of its relative imports.

    Empty if the module is not in the project.
    """
    parts = module.split(".")
    for base in (root / each for each in _BASES):
        path = base.joinpath(*parts)
        package = path / "__init__.py"
        own = package if package.is_file() else path.with_suffix(".py")
        if own.is_file():
            around = [
                (".".join(parts[:depth]), base.joinpath(*parts[:depth], "__init__.py"))
                for depth in range(1, len(parts))
            ]
            inside = module if own == package else ".".join(parts[:-1])
            return [*((name, file) for name, file in around if file.is_file()), (inside, own)]
    return []


def _imported(source: bytes, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the import reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


_imported_from: dict[Path, set[str]] = {}  # root -> the modules of a project that were imported from it


def load_class(reference: str, root: Path) -> type[Model]:
    """Import the class from the project in `root`, or from what is installed. Runs the module's code."""
    module, _, name = reference.partition(":")
    root = root.resolve()
    with _importing_from(root):
        found = _import(module, root)
    cls = getattr(found, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Model)):
        models = [
            key
            for key, value in vars(found).items()
            if isinstance(value, type) and issubclass(value, Model) and value is not Model
        ]
        what = f"{reference} is no headway.Model" if cls is not None else f"{module} has no class {name}"
        fix = f"name {module}:{models[0]}" if models else f"class {name or 'MyModel'}(headway.Model): … in {module}"
        raise BadInput(what, where=str(getattr(found, "__file__", module)), fix=fix)
    return cls


def _import(module: str, root: Path) -> object:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise BadInput(
                f"there is no module {module} in {root}",
                fix="run it in the project's folder, or name the class with --model MODULE:CLASS",
            ) from None
        raise BadInput(
            f"{module} needs {missing}, which is not installed here", fix=f"pip install {missing.partition('.')[0]}"
        ) from None
    except Exception as error:
        raise failed(f"{module} cannot be imported", error) from error


@contextmanager
def _importing_from(root: Path) -> Iterator[None]:
    """Context manager: the project's root is importable, and modules of other projects are forgotten."""
    for other in list(_imported_from):
        if other != root:
            for name in _imported_from.pop(other):
                sys.modules.pop(name, None)
    paths = [str(root), *([str(root / "src")] if (root / "src").is_dir() else [])]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    importlib.invalidate_caches()
    before = set(sys.modules)
    try:
        yield
    finally:
        own = {
            name for name in set(sys.modules) - before if _is_below(getattr(sys.modules[name], "__file__", None), root)
        }
        _imported_from.setdefault(root, set()).update(own)


def _is_below(file: str | None, root: Path) -> bool:
    return file is not None and file.startswith(f"{root}/") and "site-packages" not in file


def called(method: Callable[[], T], what: str) -> T:
    """Call a method of a project's class; what it raises becomes a ModelFailed with the line."""
    try:
        return method()
    except HeadwayError:
        raise
    except Exception as error:
        raise failed(what, error) from error


def failed(what: str, error: BaseException) -> ModelFailed:
    """Return an error that names the last line of the project's code."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and f"{Path(__file__).parents[1]}/" not in frame.filename
        and not frame.filename.startswith("<")
    ]
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    else:
        where = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    return ModelFailed(f"{what}: {type(error).__name__}: {error}", where=where, fix="correct it there, and try again")
