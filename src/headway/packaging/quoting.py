"""How a value is written into a Dockerfile: `quoted` is the only way in.

A Dockerfile is read line by line, before any shell sees it: a line feed ends an instruction even inside a shell's
quotation marks. Guarantees: what is quoted stays one value on one line. Raises BadInput where it cannot.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Literal

from headway.core.errors import BadInput

Form = Literal["comment", "word", "label", "shell"]

_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9@%+=:,./_~-]*")  # of an image, a platform, a file: needs no quotes anywhere


def quoted(value: str, form: Form, what: str) -> str:
    """The value as it is written there: in a comment, as one bare word, as a label's value, as a word for a shell.

    `what` names it in the error: "the base image".
    """
    if form == "comment":
        return _CONTROL.sub(" ", value).rstrip("\\")
    if _CONTROL.search(value) or (form == "word" and not _WORD.fullmatch(value)):
        raise BadInput(f"{what} cannot be written into a Dockerfile: {value[:200]!r}", fix=f"change {what}")
    if form == "label":
        return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'
    return value if form == "word" else shlex.quote(value)


def labels(values: dict[str, str]) -> str:
    """One LABEL instruction."""
    pairs = [f"{quoted(key, 'word', 'a label')}={quoted(value, 'label', key)}" for key, value in values.items()]
    return "LABEL " + " \\\n      ".join(pairs)


def run(command: str) -> str:
    """A shell command of the job file as one RUN instruction. As a list where a bare line would mean something else."""
    command = command.strip()
    several = _CONTROL.search(command.replace("\t", " ")) or command.endswith("\\") or "<<" in command
    if several or command.startswith(("[", "--", "#")):
        return f"RUN {exec_form(['/bin/sh', '-ec', command])}"
    return f"RUN {command}"


def exec_form(words: Sequence[str]) -> str:
    """The words of ENTRYPOINT, CMD or RUN as a list: no shell reads them, and JSON escapes line feeds."""
    return json.dumps(list(words))
