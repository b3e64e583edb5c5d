"""The google provider's schema, read from the Python that cdktf-cdktf-provider-google carries, without importing it."""

from __future__ import annotations

import ast
import os
import zipfile
from functools import cache
from pathlib import Path

PACKAGE = "cdktf_cdktf_provider_google"
META = {"depends_on", "for_each", "count", "lifecycle", "provider", "connection", "provisioners"}


def wheel() -> Path | None:
    """$HEADWAY_CDKTF_WHEEL, or what lies in the repository's .cache."""
    named = os.environ.get("HEADWAY_CDKTF_WHEEL")
    kept = sorted((Path(__file__).parents[2] / ".cache").glob(f"{PACKAGE}-*.whl"))
    return Path(named) if named else kept[-1] if kept else None


@cache
def structs(resource: str) -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Of `google_storage_bucket` and the like: struct -> (all that may be given, all that must be)."""
    path = wheel()
    assert path is not None
    module = resource.removeprefix("google_")
    folder = f"data_google_{module.removeprefix('data_')}" if module.startswith("data_") else module
    with zipfile.ZipFile(path) as archive:
        tree = ast.parse(archive.read(f"{PACKAGE}/{folder}/__init__.py"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            mapping = _mapping(node)
            if mapping is not None:
                found[node.name] = (frozenset(mapping), frozenset(_required(node)))
    return found


def _mapping(node: ast.ClassDef) -> list[str] | None:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "name_mapping" and isinstance(keyword.value, ast.Dict):
                    return [str(key.value) for key in keyword.value.keys if isinstance(key, ast.Constant)]
    return None


def _required(node: ast.ClassDef) -> list[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            pairs = zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
            return [argument.arg for argument, default in pairs if default is None]
    return []


def camel(text: str) -> str:
    return "".join(part.capitalize() for part in text.split("_"))
