"""The public names, and the page that lists them: `python -m tests.rules.public_api` writes docs/api.md."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
ALL = "everything in __all__"
DEFINED = "every function and class that the module defines"

# Section -> module -> its public names.
SECTIONS: dict[str, dict[str, str | tuple[str, ...]]] = {
    "Jobs, plans and runs": {
        "headway": ALL,
        "headway.launcher.lifecycle": ("RunHandle", "Outcome"),
        "headway.artifacts.use": ("PredictionModel",),
        "headway.planning": ALL,
        "headway.core.plan": ("describe_resume", "describe_next_start"),
        "headway.core.types": DEFINED,
        "headway.core.errors": DEFINED,
    },
    "Training scripts": {
        "headway.runtime": ALL,
        "headway.training.schedules": DEFINED,
        "headway.training.optim": ("Average",),
        "headway.training.export": ("Bundle",),
    },
    "Recorded runs and notebooks": {"headway.dashboard.notebook.run": DEFINED},
    "Exported models": {
        "headway.bundle": ALL,
        "headway.bundle.format": ("BundleFile",),
        "headway.bundle.publish": DEFINED,
    },
    "Storage": {"headway.storage": ALL},
    "Plug-in points": {
        "headway.plugins": (
            "Recipe",
            "TargetPlugin",
            "TrackerPlugin",
            "Reference",
            "Catalog",
            "installed_plugins",
            "installed_catalog",
            "built_in_catalog",
            "working_catalog",
            "plugin_of",
            "require_recipe",
            "missing_packages",
            "tracker_problems",
        ),
        "headway.plugins.registry": ("Registry", "InstalledPlugin", "BrokenPlugin", "is_path", "declare"),
        "headway.targets": DEFINED,
        "headway.training.metrics.trackers.base": ("Tracker", "TrackerRunInfo"),
        "headway.data.readers.base": DEFINED,
        "headway.data.readers.detect": DEFINED,
    },
    "Metrics": {
        "headway.metrics.captions": DEFINED,
        "headway.metrics.bleu": ("BleuCounts",),
        "headway.metrics.translation": DEFINED,
        "headway.metrics.classification": DEFINED,
        "headway.metrics.ordinal": DEFINED,
        "headway.metrics.samples": (
            "Interval",
            "interval",
            "difference",
            "of_mean",
            "of_bleu",
            "of_kappa",
            "kappa_interval",
        ),
        "headway.metrics.files": ("score_captions", "score_classification", "score_ordinal", "score_translation"),
    },
}
CONSTANTS = {
    "headway.__version__": "Headway's version.",
    "headway.bundle.RECORD": "Name of a bundle's record: `bundle.json`.",
    "headway.bundle.WEIGHTS": "Name of a bundle's weights: `model.safetensors`.",
    "headway.storage.ABSENT": "As `when`: write only if the object does not exist.",
}
# Its attributes are the keys of the job file, which docs/job-file.md explains one by one.
ELSEWHERE = ("headway.Job",)


@dataclass(frozen=True)
class Name:
    """A public function, class or member of a class, under the name by which users reach it."""

    name: str
    what: Any
    owner: type | None = None

    @property
    def doc(self) -> str:
        # Not inspect.getdoc, which returns the text of a base class: each name has a text of its own.
        return inspect.cleandoc(getattr(self.what, "__doc__", None) or "")

    @property
    def function(self) -> Any:
        """The function whose parameters it takes, or None."""
        if isinstance(self.what, property):
            return None
        if not inspect.isclass(self.what):
            return self.what
        own = vars(self.what).get("__init__")
        is_value = dataclasses.is_dataclass(self.what) or hasattr(self.what, "_fields")
        return own if inspect.isfunction(own) or is_value else None

    @property
    def parameters(self) -> list[str]:
        """Names of its parameters, as an Args section writes them; of its fields, if it is a dataclass."""
        if self.function is None or (inspect.isclass(self.what) and _is_abstract(self.what)):
            return []
        if dataclasses.is_dataclass(self.what):
            return [field.name for field in dataclasses.fields(self.what) if field.init]
        if hasattr(self.what, "_fields"):
            return list(self.what._fields)
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        found = inspect.signature(self.function).parameters.values()
        return [stars.get(one.kind, "") + one.name for one in found if one.name not in ("self", "cls")]


def _is_abstract(cls: type) -> bool:
    return issubclass(cls, enum.Enum) or bool(getattr(cls, "_is_protocol", False))


def names_of(module: str, which: str | tuple[str, ...]) -> list[str]:
    home = import_module(module)
    if which == ALL:
        return list(home.__all__)
    if which == DEFINED:
        found = {name: value for name, value in vars(home).items() if not name.startswith("_")}
        own = (inspect.isfunction, inspect.isclass)
        return [n for n, value in found.items() if any(is_(value) for is_ in own) and value.__module__ == module]
    return list(which)


def top_level(module: str, which: str | tuple[str, ...]) -> list[Name]:
    home = import_module(module)
    wanted = [name for name in names_of(module, which) if f"{module}.{name}" not in CONSTANTS]
    return [Name(f"{module}.{name}", getattr(home, name)) for name in wanted]


def members(name: Name) -> Iterator[Name]:
    """The public methods and properties that a class defines itself."""
    for attribute, value in vars(name.what).items() if inspect.isclass(name.what) else ():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not attribute.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield Name(f"{name.name}.{attribute}", plain, name.what)


def modules() -> list[tuple[str, str | tuple[str, ...]]]:
    return [item for section in SECTIONS.values() for item in section.items()]


def documented() -> list[Name]:
    """Every public name, each object once: under the first name by which it can be reached."""
    seen: set[int] = set()
    found: list[Name] = []
    for module, which in modules():
        for name in top_level(module, which):
            if id(name.what) not in seen:
                seen.add(id(name.what))
                found += [name, *members(name)]
    return found


# The page

HEAD = """# Python API

Every public name with the first line of its docstring; the docstring has the arguments, results, errors and an example
(`help(headway.plan)`). Written by `python -m tests.rules.public_api`; a test compares it with the code.

Tests run all examples, in a folder that holds a job file `headway.yaml`, its script `train.py` and a finished run
`runs/night`. Names that start with an underscore and modules that are not listed here may change at any time.
"""


def page() -> str:
    first: dict[int, str] = {}  # an object -> the name under which it is described
    sections = [f"## {title}\n\n{_table(modules, first)}" for title, modules in SECTIONS.items()]
    return "\n".join([HEAD, *sections])


def _table(modules: dict[str, str | tuple[str, ...]], first: dict[int, str]) -> str:
    rows = ["| name | |", "| --- | --- |"]
    for module, which in modules.items():
        for name in names_of(module, which):
            rows += _rows(Name(f"{module}.{name}", getattr(import_module(module), name)), first)
    return "\n".join(rows) + "\n"


def _rows(name: Name, first: dict[int, str]) -> list[str]:
    if name.name in CONSTANTS:
        return [_row(name.name, import_module(name.name.rpartition(".")[0]).__file__, CONSTANTS[name.name])]
    home = import_module(name.what.__module__).__file__
    known = first.setdefault(id(name.what), name.name)
    if known != name.name:
        return [_row(name.name, home, f"The same as `{known}`.")]
    return [_row(one.name, home, one.doc.partition("\n\n")[0]) for one in (name, *members(name))]


def _row(name: str, home: str | None, line: str) -> str:
    assert home is not None
    link = Path(home).relative_to(ROOT).as_posix()
    text = " ".join(line.split()).replace("|", "\\|")
    return f"| [`{name}`](../{link}) | {text} |"


if __name__ == "__main__":
    PAGE.write_text(page())
