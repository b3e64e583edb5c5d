"""Run the examples of docstrings: `python -m tests.rules.examples MODULE…`, each in a new folder.

An example starts with no names defined, as in a new interpreter. Those of `Run`'s methods continue the example of
`Run` from the point where everything is set up.
"""

from __future__ import annotations

import doctest
import io
import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

SCRIPT = "print('one line')\n"
JOB = "name: example\nscript: train.py\nconfig: {lr: 0.5}\n"
CONTINUE_RUN = ("headway.training.run", "headway.training.export")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def found(module: str) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder().find(import_module(module), module, globs={})
    return [test for test in tests if test.examples]


def source(test: doctest.DocTest) -> str:
    """The example as a script."""
    return "".join(example.source for example in test.examples)


def set_up() -> list[doctest.Example]:
    """The example of `Run` until its loop starts."""
    (whole,) = (test for test in found("headway.training.run") if test.name == "headway.training.run.Run")
    first = next(n for n, one in enumerate(whole.examples) if one.source.startswith("for epoch"))
    return whole.examples[:first]


def prepare(folder: Path) -> None:
    """Write what docs/api.md promises: a job file, its script, and a finished run."""
    from headway.rundir.layout import SegmentWriter
    from headway.training.rank_info import standalone_info

    (folder / "train.py").write_text(SCRIPT)
    (folder / "headway.yaml").write_text(JOB)
    store = standalone_info(str(folder / "runs" / "night"), "train.py", {}, 0).store
    metrics, events = SegmentWriter(store, "metrics", 1), SegmentWriter(store, "events", 1)
    for step, loss in ((1, 1.0), (2, 0.5), (3, 0.25)):
        metrics.add(json.dumps({"step": step, "epoch": 0, "time": 0.0, "loss": loss}))
    events.add(json.dumps({"kind": "ended", "time": 0.0, "state": "finished", "reason": "", "exit_code": 0}))
    metrics.flush()
    events.flush()


def failures(test: doctest.DocTest, folder: Path) -> str:
    """Run one example in a prepared folder; return what differs from the docstring, or an empty text."""
    prepare(folder)
    module = test.name.rpartition(".")[0]
    if module.startswith(CONTINUE_RUN) and test.name not in (f"{CONTINUE_RUN[0]}.Run", f"{CONTINUE_RUN[0]}.start"):
        test.examples = [*set_up(), *test.examples]
    said = io.StringIO()
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    before = Path.cwd()
    os.chdir(folder)
    try:
        runner.run(test, out=said.write, clear_globs=False)
    finally:
        os.chdir(before)
        _close(test.globs)
    return said.getvalue()


def _close(names: dict[str, Any]) -> None:
    """Close the runs that an example leaves open: their leases and threads, as the end of a script would."""
    if "headway.training.run" in sys.modules:
        run = sys.modules["headway.training.run"].Run
        for value in {id(value): value for value in names.values() if isinstance(value, run)}.values():
            value._close()


def main(names: list[str]) -> int:
    wrong = 0
    for test in (test for name in names for test in found(name)):
        with tempfile.TemporaryDirectory(prefix="headway-example-") as folder:
            os.environ["HEADWAY_HOME"] = str(Path(folder, "home"))
            different = failures(test, Path(folder))
        print(f"{'failed' if different else 'ok'} {test.name}\n{different}", end="", flush=True)
        wrong += bool(different)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
