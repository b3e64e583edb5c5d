"""Fill placeholders such as {run_dir} in a project's command, arguments and variables, where it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders by their values and `{{name}}` by `{name}`. A name without a value stays as it is."""
    filled = _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)
    return _ESCAPED.sub(lambda found: found[1], filled)


def escape(text: str) -> str:
    """Return a text that `fill` turns into this one."""
    return _PLACEHOLDER.sub(lambda found: f"{{{found[0]}}}", text)
