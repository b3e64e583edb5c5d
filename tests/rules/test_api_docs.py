"""The public API is documented: every name and parameter, with examples that run."""

from __future__ import annotations

import builtins
import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import headway
import headway.runtime
import headway.training
from headway.core import errors
from tests.rules import examples
from tests.rules.public_api import ALL, ELSEWHERE, PAGE, ROOT, SECTIONS, Name, documented, names_of, page
from tests.supervisor.supervised import quiet_environment

if find_spec("torch") is None or find_spec("numpy") is None:
    pytest.skip("the train extra is not installed", allow_module_level=True)

NAMES = documented()
HEADS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Guarantees", "Cost")
HEAD = re.compile(rf"^({'|'.join(HEADS)}):$", re.M)
ENTRY = re.compile(r"^    ([*\w]+): \S", re.M)
# Their examples train, which takes signals, threads and the exit of the process.
TRAINING = ("headway.training.run", "headway.training.export")


def sections(doc: str) -> dict[str, str]:
    """The description, under "", and the text of each section."""
    first, *rest = HEAD.split(doc)
    return {"": first.strip(), **dict(zip(rest[::2], rest[1::2], strict=True))}


def faults(name: Name) -> list[str]:
    """What a docstring lacks."""
    found = sections(name.doc)
    told = ENTRY.findall(found.get("Args", "")) + (
        ENTRY.findall(found.get("Attributes", "")) if inspect.isclass(name.what) else []
    )
    wrong = [] if found[""] else ["no description"]
    wrong += [f"no {parameter} in Args" for parameter in name.parameters if parameter not in told]
    if not inspect.isclass(name.what):
        wrong += [f"{entry} in Args is no parameter" for entry in told if entry not in name.parameters]
    if _returns(name) and not found.keys() & {"Returns", "Yields"}:
        wrong.append("no Returns")
    wrong += [f"Raises {error}, which is no error" for error in ENTRY.findall(found.get("Raises", "")) if _odd(error)]
    if _needs_example(name) and ">>>" not in found.get("Example", ""):
        wrong.append("no Example")
    return wrong


def _returns(name: Name) -> bool:
    if inspect.isclass(name.what) or isinstance(name.what, property):
        return False
    return name.function.__annotations__.get("return") not in ("None", None)


def _odd(error: str) -> bool:
    kind = getattr(errors, error, None) or getattr(builtins, error, None)
    return not (inspect.isclass(kind) and issubclass(kind, Exception))


def _needs_example(name: Name) -> bool:
    """Functions and classes need one, and every member of `Run`; plain values and errors do not."""
    if name.owner is not None:
        return name.owner is headway.Run
    if not inspect.isclass(name.what):
        return True
    is_value = hasattr(name.what, "__dataclass_fields__") or hasattr(name.what, "_fields")
    return not is_value and not issubclass(name.what, Exception)


@pytest.mark.parametrize("name", [name for name in NAMES if name.name not in ELSEWHERE], ids=lambda name: name.name)
def test_a_public_name_is_documented(name: Name) -> None:
    assert faults(name) == []


@pytest.mark.parametrize("pending", ELSEWHERE)
def test_a_pending_name_still_lacks_something(pending: str) -> None:
    (name,) = (name for name in NAMES if name.name == pending)
    assert faults(name), f"{pending} is documented: remove it from ELSEWHERE"


def example(one: int, *, other: int = 0) -> int:
    """Add.

    Args:
        one: A number.
        gone: No longer there.

    Raises:
        Trouble: Always.
    """
    return one + other


def test_a_missing_argument_is_a_fault() -> None:
    assert faults(Name("example", example)) == [
        "no other in Args",
        "gone in Args is no parameter",
        "no Returns",
        "Raises Trouble, which is no error",
        "no Example",
    ]


def test_an_undocumented_method_is_a_fault() -> None:
    class Undocumented:
        def __init__(self, one: int) -> None: ...

    assert faults(Name("Undocumented", Undocumented)) == ["no description", "no one in Args", "no Example"]


# The page


def test_the_page_lists_exactly_the_exported_names() -> None:
    listed = re.findall(r"^\| \[`([\w.]+)`\]", PAGE.read_text(), re.M)
    exported = {
        f"{module}.{name}"
        for modules in SECTIONS.values()
        for module, which in modules.items()
        for name in names_of(module, which)
    }
    assert len(listed) == len(set(listed))
    assert exported - set(listed) == set()
    assert set(listed) - exported == {name.name for name in NAMES if name.owner is not None}


def test_the_packages_that_users_import_are_public_as_a_whole() -> None:
    whole = {module for modules in SECTIONS.values() for module, which in modules.items() if which == ALL}
    assert whole >= {"headway", "headway.runtime", "headway.planning", "headway.storage", "headway.bundle"}
    assert headway.runtime.__all__ == headway.training.__all__


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "python -m tests.rules.public_api writes it"


def test_every_link_of_the_page_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []


# The examples


def homes() -> list[str]:
    """The modules in which the public names are defined."""
    return sorted({name.what.__module__ for name in NAMES if name.owner is None})


EXAMPLES = [test for module in homes() if module not in TRAINING for test in examples.found(module)]


@pytest.mark.parametrize("test", EXAMPLES, ids=lambda test: test.name)
def test_an_example_runs(test: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "work"
    folder.mkdir()
    assert examples.failures(test, folder) == ""  # type: ignore[arg-type]


def test_every_example_is_run() -> None:
    run = {test.name for module in homes() for test in examples.found(module)}
    shown = set()
    for name in NAMES:
        member = f".{name.name.rpartition('.')[2]}" if name.owner else ""
        home = name.owner or name.what
        if ">>>" in name.doc:
            shown.add(f"{home.__module__}.{home.__qualname__}{member}")
    assert len(shown) > 100
    assert shown - run == set()


@pytest.mark.slow
@pytest.mark.parametrize("module", TRAINING)
def test_the_examples_that_train_run(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rules.examples", module],
        cwd=ROOT,
        env=quiet_environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == len(examples.found(module))


@pytest.mark.slow
def test_the_example_of_run_is_a_script_for_headway_run(tmp_path: Path) -> None:
    (whole,) = (test for test in examples.found("headway.training.run") if test.name == "headway.training.run.Run")
    (tmp_path / "train.py").write_text(examples.source(whole))
    (tmp_path / "headway.yaml").write_text("name: line\nscript: train.py\nconfig: {epochs: 2, lr: 0.1}\n")
    done = subprocess.run(
        [sys.executable, "-m", "headway", "run", "--name", "line"],
        cwd=tmp_path,
        env={**quiet_environment(), "HEADWAY_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = headway.open_run(str(tmp_path / "runs" / "line"))
    assert recorded.state == "finished"
    assert [record["step"] for record in recorded.metrics()] == list(range(1, 9))
