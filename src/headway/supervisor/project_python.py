"""The interpreter that runs a project, and what of Headway it may find on its path.

The supervisor may run on an interpreter that Headway brought along; the project runs on the machine's or the image's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway import integrations
from headway.core import platform
from headway.core.errors import BadInput

PYTHON, PACKAGES = "HEADWAY_PYTHON", "HEADWAY_PACKAGES"
OLDEST = (3, 10)  # that can import Headway
OLDEST_INTEGRATED = (3, 6)  # that can import its integrations
_PROBE = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
_PROBE_TIMEOUT_S = 60.0


def find_python(job: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """Return the project's interpreter: `python` of the job, of the target, or python3 or python of the PATH."""
    if job.get("python"):
        return str(job["python"])
    if platform.brought_runtime() is None:
        return sys.executable
    path = env.get("PATH", os.defpath)
    names = (env.get(PYTHON) or "python3", "python3", "python")
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def require_python(job: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the project's interpreter. Raises BadInput if the image has none."""
    found = find_python(job, env)
    if found is None:
        what = f"the image has neither python3 nor python in its PATH ({env.get('PATH', os.defpath)})"
        raise BadInput(what, where="image.uri", fix="write `python: /path/in/the/image`, or `command` instead")
    return found


def python_path(job: Mapping[str, Any], env: Mapping[str, str], code: Path) -> tuple[list[str], dict[str, str]]:
    """Return the folders of a project's PYTHONPATH, and variables for its hook (integrations/rank_path).

    Folders that the job or the image put there stay. An interpreter gets of Headway what it is new enough to import.
    """
    python = find_python(job, env)
    version = _version(python)
    root = str(Path(__file__).parents[2])
    inherited = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    runtime = platform.brought_runtime()
    if version < OLDEST:
        inherited = [folder for folder in inherited if folder != root]
    elif runtime is not None:
        inherited.insert(0, root)
    elif python != sys.executable and root not in inherited:
        inherited += _headway_alone(root)
    hooked = version >= OLDEST_INTEGRATED and env.get(integrations.SWITCH) != "0"
    folders = [*([integrations.rank_path()] if hooked else []), *inherited, str(code)]
    return folders, {PACKAGES: f"{runtime}/packages"} if runtime and version >= OLDEST else {}


def _headway_alone(root: str) -> list[str]:
    """Return a folder with a link to Headway, for another interpreter: beside it may lie packages of ours."""
    folder = platform.state_dir() / "importable" / hashlib.sha256(root.encode()).hexdigest()[:12]
    link = folder / "headway"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path(root) / "headway")
    except FileExistsError:
        pass  # another run was first
    except OSError:  # nowhere to write: the program does without
        return []
    return [str(folder)]


def search_path(job: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return the project's PATH: `python` in a command is the interpreter that a script would get."""
    python = find_python(job, env) or ""
    folders = [os.path.dirname(python), *env.get("PATH", os.defpath).split(os.pathsep)]
    named = str(job.get("python") or env.get(PYTHON) or "")
    if platform.brought_runtime() is not None and not os.path.isabs(named):
        folders = folders[1:]  # found on it already
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


def _version(python: str | None) -> tuple[int, ...]:
    """Return an interpreter's version; (0,) for none, or one that does not start."""
    if python == sys.executable:
        return sys.version_info[:2]
    return _ask_version(python) if python else (0,)


@lru_cache
def _ask_version(python: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
        return tuple(int(part) for part in done.stdout.split("."))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return (0,)
