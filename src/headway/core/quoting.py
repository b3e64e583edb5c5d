"""Quoting of values for shells and Dockerfiles. Plain words for one shell are quoted by `shlex` where they are used.

YAML and JSON are written by their libraries, and Terraform's variables are JSON: nothing else is quoted by hand.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

from headway.core.errors import BadInput

# Dockerfile: it is read line by line before any shell sees it, so a line feed ends an instruction even inside a
# shell's quotation marks. Guarantees: a quoted value stays one value on one line. Raises BadInput where it cannot.

QuoteStyle = Literal["comment", "word", "label", "shell"]

CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_BARE_WORD = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9@%+=:,./_~-]*"
)  # an image, platform or file that needs no quotes anywhere


def quote_for_dockerfile(value: str, style: QuoteStyle, what: str) -> str:
    """Quote a value for a comment, as one bare word, as a label's value, or as one word for a shell.

    `what` names it in the error: "the base image".
    """
    if style == "comment":
        return CONTROL_CHARACTERS.sub(" ", value).rstrip("\\")
    if CONTROL_CHARACTERS.search(value) or (style == "word" and not _BARE_WORD.fullmatch(value)):
        raise BadInput(f"{what} cannot be written into a Dockerfile: {value[:200]!r}", fix=f"change {what}")
    if style == "label":
        return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'
    return value if style == "word" else shlex.quote(value)


# Shell


def quote_path(folder: str) -> str:
    """Quote a path for a remote shell, which expands a leading ~ to its own home folder."""
    if folder == "~" or folder.startswith("~/"):
        return '"$HOME"' + (shlex.quote(folder[1:]) if folder[1:] else "")
    return shlex.quote(folder)


def sh_command(script: str) -> str:
    """Return the command that runs a POSIX script whatever the login shell is: csh and fish have another syntax."""
    return f"exec sh -c {shlex.quote(script)}"


def setup_steps(commands: list[str]) -> list[str]:
    """Return each setup command as a step of a start script, whose function `fail` reports it if it fails."""
    return [f"{{\n{command}\n}} || fail {shlex.quote('setup: ' + command)}" for command in commands]
