"""Values that a target has brought here as files in memory, one file a variable: never an argument, never in a plan.

Whoever starts the supervisor names the folder in HEADWAY_SECRETS_DIR. It is emptied once it has been read.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from headway.errors import BadInput

FOLDER, NAMES = "HEADWAY_SECRETS_DIR", "HEADWAY_BROUGHT"


def take_over(env: MutableMapping[str, str]) -> None:
    """Put what was brought into the environment, remember under which names, and remove the files."""
    folder = env.get(FOLDER)
    if not folder:
        return
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
        values = {path.name: path.read_text(encoding="utf-8") for path in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"what was brought in {FOLDER} cannot be read: {error}", where=folder) from None
    env.update(values)
    env[NAMES] = ",".join(values)
    for path in files:
        try:
            path.unlink()
        except OSError:
            pass  # a cluster mounts them read-only, and takes them away itself


def values(env: Mapping[str, str]) -> dict[str, str]:
    """What was brought, by name."""
    return {name: env[name] for name in env.get(NAMES, "").split(",") if name in env}
