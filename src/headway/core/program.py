"""Describe what a recorded job runs: a recipe, or a project's script, module, notebook or command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

KEEP_LIMIT = 50_000_000_000  # bytes: the most that is kept of what a project writes, unless `keep_limit` says otherwise
PROGRAM_KEYS = ("recipe", "script", "module", "notebook", "command")


def is_project(job: Mapping[str, Any]) -> bool:
    """Return whether a recorded job runs the user's own code instead of a recipe."""
    return not job.get("recipe")


def is_foreign_image(job: Mapping[str, Any]) -> bool:
    """Return whether a recorded job's image is not made by Headway: a ready one, or one of the project's Dockerfile."""
    image: Mapping[str, Any] = job.get("image") or {}
    return bool(image.get("uri") or image.get("dockerfile"))


def program_words(job: Mapping[str, Any]) -> list[str]:
    """Return the project's command line as the user knows it: `python -m src.train --lr 0.1`."""
    args = [str(word) for word in job.get("args") or ()]
    if job.get("command"):
        return [str(word) for word in job["command"]]
    if job.get("module"):
        return ["python", "-m", str(job["module"]), *args]
    return [str(job.get("script") or job.get("notebook") or ""), *args]


def program_text(job: Mapping[str, Any]) -> str:
    """Return what a job runs, in one line: `recipe captioning`, `script train.py --lr 0.1`, `command make train`."""
    if job.get("recipe"):
        return f"recipe {job['recipe']}"
    kind = next((key for key in PROGRAM_KEYS if job.get(key)), "script")
    words = program_words(job)
    return f"{kind} {shlex.join(words[2:] if kind == 'module' else words)}"


def entry_files(job: Mapping[str, Any]) -> list[str]:
    """Return the paths, relative to the project's folder, at which its program may begin. Not all need to exist."""
    if job.get("script") or job.get("notebook"):
        return [str(job.get("script") or job.get("notebook"))]
    if job.get("module"):
        return _module_files(str(job["module"]))
    return _files_in_command([str(word) for word in job.get("command") or ()])


def _module_files(module: str) -> list[str]:
    path = module.replace(".", "/")
    return [f"{path}.py", f"{path}/__main__.py", f"src/{path}.py", f"src/{path}/__main__.py"]


def _files_in_command(words: Sequence[str]) -> list[str]:
    found = []
    for place, word in enumerate(words):
        if word == "-m" and place + 1 < len(words):
            found += _module_files(words[place + 1])
        elif re.search(r"\.(py|sh|bash|ipynb)$", word):
            found.append(word.removeprefix("./"))
    return found
