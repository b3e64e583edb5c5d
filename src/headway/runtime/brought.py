"""Values that a target has brought here: never an argument, never in a plan.

As files in memory, one a variable, in the folder that HEADWAY_SECRETS_DIR names, which is emptied once it has been
read; or, with HEADWAY_SECRETS_STDIN, as one JSON object on the supervisor's standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TextIO

from headway.errors import BadInput

FOLDER, STDIN, NAMES = "HEADWAY_SECRETS_DIR", "HEADWAY_SECRETS_STDIN", "HEADWAY_BROUGHT"


def take_over(env: MutableMapping[str, str], told: TextIO | None = None) -> None:
    """Put what was brought into the environment, remember under which names, and remove the files."""
    if env.pop(STDIN, ""):
        _remember(env, _heard(told or sys.stdin))
    folder = env.get(FOLDER)
    if not folder:
        return
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        values = {path.name: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"what was brought in {FOLDER} cannot be read: {error}", where=folder) from None
    _remember(env, values)
    for path in files:
        try:
            path.unlink()
        except OSError:
            pass  # a cluster mounts them read-only, and takes them away itself


def _remember(env: MutableMapping[str, str], values: Mapping[str, str]) -> None:
    env.update(values)
    env[NAMES] = ",".join(filter(None, (env.get(NAMES, ""), *values)))


def _heard(told: TextIO) -> dict[str, str]:
    try:
        values = json.load(told)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        # Without a word of what it was: it may be half a secret.
        raise BadInput("what was brought over standard input is not an object of texts", where=STDIN)
    return values


def values(env: Mapping[str, str]) -> dict[str, str]:
    """What was brought, by name."""
    return {name: env[name] for name in env.get(NAMES, "").split(",") if name in env}
