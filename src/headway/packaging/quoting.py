"""Quote values for a Dockerfile: `quoted` is the only way in.

A Dockerfile is read line by line before any shell sees it: a line feed ends an instruction even inside a shell's
quotation marks. Guarantees: a quoted value stays one value on one line. Raises BadInput where it cannot.
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
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9@%+=:,./_~-]*")  # an image, platform or file that needs no quotes anywhere


def quoted(value: str, form: Form, what: str) -> str:
    """Quote a value for a comment, as one bare word, as a label's value, or as one word for a shell.

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
    """Render one LABEL instruction."""
    pairs = [f"{quoted(key, 'word', 'a label')}={quoted(value, 'label', key)}" for key, value in values.items()]
    return "LABEL " + " \\\n      ".join(pairs)


def run(command: str) -> str:
    """Render a shell command as one RUN instruction, in exec form where a plain line would mean something else."""
    command = command.strip()
    several = _CONTROL.search(command.replace("\t", " ")) or command.endswith("\\") or "<<" in command
    if several or command.startswith(("[", "--", "#")):
        return f"RUN {exec_form(['/bin/sh', '-ec', command])}"
    return f"RUN {command}"


def exec_form(words: Sequence[str]) -> str:
    """Render the words of ENTRYPOINT, CMD or RUN in exec form: no shell reads them, and JSON escapes line feeds."""
    return json.dumps(list(words))
