"""A command of another program: its output, or an error that says what happened and what to type."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.core.command import CommandError, ErrorRule, match_rule, run


class Missing(CommandError):
    pass


class Slow(CommandError):
    pass


class Refused(CommandError):
    pass


RULES: tuple[ErrorRule[CommandError], ...] = (
    (r"no such (thing|place)", Refused, "{program} has no {0}", "look elsewhere"),
    (r"no such", CommandError, "never reached by the above", ""),
)


def failed(argv: Sequence[str], output: str) -> CommandError:
    return match_rule(RULES, output, program="it") or CommandError(f"{argv[0]} failed", output=output)


def ask(*argv: str, within_s: float = 60.0, errors: str = "replace") -> str:
    return run(
        argv,
        within_s=within_s,
        not_installed=lambda name: Missing(f"{name} is missing", fix="install it"),
        timed_out=lambda: Slow("too slow"),
        failed=failed,
        errors=errors,
    )


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_its_output_is_returned_and_it_has_no_input() -> None:
    assert ask(*python("import sys; print(repr(sys.stdin.read()))")) == "''\n"


def test_bytes_that_are_not_utf8_are_decoded_as_asked() -> None:
    code = python("import sys; sys.stdout.buffer.write(b'a\\xff')")
    assert ask(*code) == "a\ufffd"
    assert ask(*code, errors="surrogateescape") == "a\udcff"


def test_each_way_to_fail_has_its_error(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="is missing"):
        ask("headway-no-such-command")
    with pytest.raises(Slow):
        ask(*python("import time; time.sleep(60)"), within_s=0.2)
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    with pytest.raises(Missing, match="cannot be run by this user") as caught:
        ask(str(tmp_path / "plain"))
    assert caught.value.problem.fix == f"ls -l {tmp_path / 'plain'}"


def test_a_failure_is_recognised_by_the_first_rule_and_keeps_its_output() -> None:
    with pytest.raises(Refused, match="it has no THING") as caught:
        ask(*python("import sys; sys.exit('error: No such THING here')"))
    assert (caught.value.output, caught.value.problem.fix) == ("error: No such THING here", "look elsewhere")
    with pytest.raises(CommandError, match="failed") as other:
        ask(*python("print('out'); raise SystemExit(3)"))
    assert other.value.output == "out"
