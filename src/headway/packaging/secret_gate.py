"""The gate for everything that leaves this machine as code: archives, images and packages are all made from it.

A file whose name looks like a secret is left out (`selection`). A file whose content does is refused, with file and
line, until it is given by reference (`secrets`), ignored, or allowed by its full name in `.headwayignore`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headway.core.errors import BadInput, BadJob, Problem
from headway.storage.secret_scan import Finding, find_secrets, looks_secret_by_name
from headway.storage.secrets import parse

if TYPE_CHECKING:
    from headway.spec import Job

# A value in one of these is moved to a variable; any other file is given as a whole.
_CODE = (".py", ".pyi", ".ipynb", ".sh", ".bash", ".r", ".md", ".rst", "headway.yaml", "Dockerfile", "requirements.txt")


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file with a credential in it."""

    name: str
    finding: Finding

    def __str__(self) -> str:
        return f"{self.name}:{self.finding.line} ({self.finding.kind})"

    def problem(self) -> Problem:
        return Problem(
            what=f"{self.finding.kind} would be sent with the code",
            where=f"{self.name}:{self.finding.line}",
            fix=f"{_fix(self.name)}; if it is not secret: echo {shlex.quote('!' + self.name)} >> .headwayignore",
        )


def scan_files(files: Iterable[tuple[str, bytes]], allowed: Collection[str]) -> list[SecretFile]:
    """Return the files with credentials in them, each with its first finding."""
    found = []
    for name, body in files:
        findings = [] if name in allowed else find_secrets(body)
        if findings:
            found.append(SecretFile(name, findings[0]))
    return found


def refuse(found: Collection[SecretFile]) -> None:
    """Raise BadJob with file, line and fix of each of these files."""
    if found:
        raise BadJob([one.problem() for one in found])


def check_wheel(sources: Iterable[tuple[str, bytes]], folder: Path) -> None:
    """Raise BadInput if Headway's own installation, which is sent as a wheel, contains a secret."""
    for name, body in sources:
        findings = find_secrets(body)
        if findings or looks_secret_by_name(PurePosixPath(name).name):
            kind = findings[0].kind if findings else "a secret by its name"
            path = folder / name
            raise BadInput(f"{kind} lies in Headway's own package, which is sent", where=str(path), fix=f"rm {path}")


def files_of_secrets(job: Job, root: Path) -> set[str]:
    """Return the files of the project that the job itself gives by reference: they are not part of its code."""
    found = {PurePosixPath(secret.at).as_posix() for secret in job.secrets.values() if secret.at}
    for secret in job.secrets.values():
        reference = parse(secret.ref)
        path = (root / Path(reference.name).expanduser()).resolve() if reference.kind == "file" else None
        if path is not None and path.is_relative_to(root):
            found.add(path.relative_to(root).as_posix())
    return found


def _fix(name: str) -> str:
    if name.endswith(_CODE):
        return "read the value from a variable, and set that by reference: secrets: {NAME: env:NAME} in the job file"
    key = re.sub(r"\W+", "_", PurePosixPath(name).stem, flags=re.ASCII).strip("_").upper() or "KEY"
    key = f"KEY_{key}" if key[0].isdigit() else key
    return (
        f"in the job file: secrets: {{{key}: {{ref: {_flow(f'file:{name}')}, as: file, at: {_flow(name)}}}}}, "
        "which keeps it out of the code and puts it there"
    )


def _flow(text: str) -> str:
    """Quote a value for a flow mapping of YAML if it needs it."""
    return text if re.fullmatch(r"[\w./:-]+", text, re.ASCII) else "'" + text.replace("'", "''") + "'"
