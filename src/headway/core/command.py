"""Run another program's command line and map its failures to our errors, by rules over its output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from headway.core.errors import TargetError


class CommandError(TargetError):
    """A command failed. `output` is what it printed."""

    def __init__(self, what: str, *, output: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.output = output


Error = TypeVar("Error", bound=CommandError)
ErrorRule = tuple[str, type[Error], str, str]  # pattern in the output, error class, what happened, fix


def run(
    argv: Sequence[str],
    *,
    within_s: float,
    not_installed: Callable[[str], CommandError],
    timed_out: Callable[[], CommandError],
    failed: Callable[[Sequence[str], str], CommandError],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    errors: str = "replace",
) -> str:
    """Return a command's output. Raises what the callables return, for each way in which it can fail.

    `errors`: how bytes that are not UTF-8 are decoded.
    """
    try:
        with launch_errors(argv[0], not_installed):
            process = subprocess.run(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s, check=False
            )
    except subprocess.TimeoutExpired:
        raise timed_out() from None
    stdout, stderr = (text.decode("utf-8", errors) for text in (process.stdout, process.stderr))
    if process.returncode:
        raise failed(argv, stderr.strip() or stdout.strip())
    return stdout


@contextmanager
def launch_errors(name: str, not_installed: Callable[[str], CommandError]) -> Iterator[None]:
    """Map the errors of starting a program that is missing, or that this user may not run."""
    try:
        yield
    except FileNotFoundError:
        raise not_installed(name) from None
    except PermissionError:
        kind, path = type(not_installed(name)), shutil.which(name, mode=os.F_OK) or name
        raise kind(f"{name} cannot be run by this user", fix=f"ls -l {path}") from None


def match_rule(rules: Iterable[ErrorRule[Error]], output: str, **values: str) -> Error | None:
    """Return the error of the first rule whose pattern is in the output. Its groups and `values` fill the message."""
    for pattern, kind, what, fix in rules:
        match = re.search(pattern, output, re.IGNORECASE)
        if match:
            return kind(what.format(*match.groups(), **values), output=output, fix=fix)
    return None
