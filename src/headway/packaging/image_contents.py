"""Look into a ready image for what a project needs there: its interpreter, or the command that it runs.

An engine on this machine starts the supervisor's own interpreter in the image, exactly as a run does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.core.errors import Problem
from headway.packaging import build
from headway.packaging.engine import Engine, EngineError
from headway.packaging.supervisor_runtime import RUNTIME_DIR, python_words, unpack_here
from headway.storage import join

_FIND = "import json, shutil, sys; print(json.dumps([shutil.which(name) for name in sys.argv[1:]]))"


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Programs of which an image must have one."""

    names: tuple[str, ...]
    where: str
    fix: str

    def missing(self, image: str) -> Problem:
        names = " nor ".join(dict.fromkeys(self.names))
        what = f"{image} has no {names}" + ("" if self.names[0].startswith("/") else " in its PATH")
        return Problem(what=what, where=self.where, fix=self.fix)


def program_of(job: Mapping[str, Any], python: str = "python3") -> Program | None:
    """Return what a recorded job starts in its image; None if that comes with its code. `python` is the target's."""
    if job.get("python"):
        fix = "name an interpreter of the image: python: /usr/bin/python3"
        return Program(names=(str(job["python"]),), where="python", fix=fix)
    if job.get("command"):
        word = str(job["command"][0])
        if word == "python":  # one that has only python3 runs it with that
            return Program(names=("python", python, "python3"), where="command", fix="name a program of the image")
        if "{" in word or ("/" in word and not word.startswith("/")):
            return None
        return Program(names=(word,), where="command", fix="name a program of the image, by its full path if need be")
    if not job.get("module") and not str(job.get("script") or job.get("notebook")).endswith((".py", ".ipynb")):
        return None
    fix = "write `python: /path/of/an/interpreter` of the image, or `command: [...]` instead of a script"
    return Program(names=(python, "python3", "python"), where="image.uri", fix=fix)


def problems(
    job: Mapping[str, Any], engine: Engine, command: str, runtime: str, *, image: str = "", python: str = "python3"
) -> list[Problem]:
    """Return what the job's image lacks; nothing if the image is not on this machine: a plan pulls and builds none.

    `image` is the name of one that was built, by default the job's ready one.
    """
    image, program = image or str(job["image"]["uri"]), program_of(job, python)
    if program is None or not build.is_present(engine, command, image):
        return []
    folder = unpack_here(runtime, join(str(job["outputs"]), "code"))
    start = python_words()
    sandbox = ["run", "--rm", "--network", "none", "--security-opt", "label=disable"]  # SELinux: as the run's container
    mount = ["--volume", f"{folder}:{RUNTIME_DIR}:ro", "--entrypoint", start[0]]
    try:
        found = json.loads(engine([command, *sandbox, *mount, image, *start[1:], "-c", _FIND, *program.names]))
    except EngineError as error:
        what = f"nothing can be started in {image}: {error.problem.what}"
        return [Problem(what=what, where="image.uri", fix=f"{command} image inspect {image}")]
    return [] if any(found) else [program.missing(image)]
