"""Tracebacks in a program's output: the exception, and the innermost line of the project."""

from __future__ import annotations

import sys
import traceback

from headway.core.python_errors import Frame, PythonError, last_error
from headway.rundir.source_paths import SourcePaths

PRINTED = """\
epoch 1
Traceback (most recent call last):
  File "/code/train.py", line 9, in <module>
    main()
  File "/code/src/loop.py", line 6, in main
    model(x)
  File "/code/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ~~~~~~~~~~~~~~~^^^^^
  File "/usr/lib/python3.12/foo.py", line 5, in forward
RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)
"""


def test_the_exception_and_the_projects_own_innermost_line_are_found() -> None:
    error = last_error(PRINTED.splitlines())
    assert error is not None
    assert (error.kind, len(error.frames)) == ("RuntimeError", 4)
    assert error.own_frame("/code") == Frame("src/loop.py", 6)
    assert error.describe("/code") == "RuntimeError at src/loop.py:6"
    assert error.describe("/elsewhere") == "RuntimeError at /usr/lib/python3.12/foo.py:5"


def test_what_torch_puts_before_each_line_is_left_out() -> None:
    error = last_error([f"[rank1]: {line}" for line in PRINTED.splitlines()[1:]])
    assert error is not None
    assert error.own_frame("/code") == Frame("src/loop.py", 6)


def test_the_last_of_several_exceptions_counts() -> None:
    try:
        try:
            raise KeyError("a")
        except KeyError:
            raise ValueError("b") from None
    except ValueError:
        text = traceback.format_exc()
    error = last_error([*PRINTED.splitlines(), "During handling of it", *text.splitlines()])
    assert error is not None
    assert (error.kind, error.message) == ("ValueError", "b")


def test_a_file_that_is_not_python_has_no_traceback() -> None:
    lines = ['  File "/code/train.py", line 3', "    def f(:", "          ^", "SyntaxError: invalid syntax"]
    error = last_error(lines)
    assert error is not None
    assert (error.describe("/code"), error.is_fatal) == ("SyntaxError at train.py:3", True)


def test_a_program_that_python_does_not_find_is_one_too() -> None:
    assert last_error([f"{sys.executable}: No module named src.train"]) == PythonError(
        "ModuleNotFoundError", "No module named src.train"
    )


def test_ordinary_output_is_no_exception() -> None:
    assert last_error(["epoch: 1", "loss: 0.5", "Error: none"]) is None


def test_paths_of_a_copy_are_shown_as_the_users_own() -> None:
    line = '  File "/runs/a/local/code/src/x.py", line 3, in f'
    assert (
        SourcePaths("/runs/a/local/code", "/home/ana/p").translate(line)
        == '  File "/home/ana/p/src/x.py", line 3, in f'
    )
    assert SourcePaths("/runs/a/local/code", ".").translate(line) == '  File "src/x.py", line 3, in f'
    assert SourcePaths("/runs/a/local/code", ".").translate("in /runs/a/local/code/x") == "in /runs/a/local/code/x"
