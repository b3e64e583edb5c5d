"""What a job runs: a recipe, a script, module, notebook or command line of a project, with placeholders ({run_dir})."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

KEEP_LIMIT = 50_000_000_000  # bytes: the most that is kept of what a project writes, unless `keep_limit` says otherwise
PROGRAM_KEYS = ("recipe", "script", "module", "notebook", "command")


def is_project(job: Mapping[str, Any]) -> bool:
    """Return whether a recorded job runs the user's own code instead of a recipe."""
    return not job.get("recipe")


def uses_project_code(job: Mapping[str, Any]) -> bool:
    """Return whether a recorded job runs code of the project: its program, or a recipe or tracker named by path."""
    named = (str(job.get("recipe") or ""), *map(str, job.get("log_to") or ()))
    return is_project(job) or any(":" in name for name in named)


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


# Placeholders in a project's command, arguments and variables, filled in where it runs


# name -> what it stands for; `data.NAME` besides. The JSON Schema and docs/job-file.md list them.
PLACEHOLDERS: Final[dict[str, str]] = {
    "run_dir": "a folder whose files are kept in the run folder ($HEADWAY_RUN_DIR)",
    "resume_dir": "the files of run_dir that earlier attempts saved ($HEADWAY_RESUME_DIR)",
    "run": "the run's name",
    "attempt": "the attempt, from 1",
    "rank": "this process among all",
    "local_rank": "this process on its node",
    "node": "this node, from 0",
    "nodes": "the number of nodes",
    "world": "the number of processes on all nodes",
    "pod.name": "the name of this pod (Kubernetes)",
    "pod.ip": "the address of this pod (Kubernetes)",
}
DATA: Final = "data."
_NAME = r"[a-z][a-z_]*(?:\.[A-Za-z0-9_][A-Za-z0-9_.-]*)?"
_PLACEHOLDER = re.compile(rf"(?<!\{{)\{{({_NAME})\}}(?!\}})")
_ESCAPED = re.compile(rf"\{{(\{{{_NAME}\}})\}}")


def placeholder_names(text: str) -> list[str]:
    """Return the names in a text: `{run_dir}` is one, `{{run_dir}}` and `{"lr": 1}` are not."""
    return _PLACEHOLDER.findall(text)


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders by their values and `{{name}}` by `{name}`. A name without a value stays as it is."""
    filled = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
    return _ESCAPED.sub(lambda found: found[1], filled)


def escape_placeholders(text: str) -> str:
    """Return a text that `fill_placeholders` turns into this one."""
    return _PLACEHOLDER.sub(lambda found: f"{{{found[0]}}}", text)
